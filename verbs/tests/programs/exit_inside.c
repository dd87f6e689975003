/* `exit` in a signal handler that has interrupted an allocation. The program's own allocator keeps its lock from then on,
 * as that of C's library does: whoever allocates waits for ever. To free takes no lock, as there: `exit` itself does. */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static pthread_mutex_t allocator = PTHREAD_MUTEX_INITIALIZER;
static volatile int interrupted;

static void enter(void)
{
	pthread_mutex_lock(&allocator);
	if (interrupted == 1) {
		interrupted = 2;
		raise(SIGUSR1);
	}
}

void *malloc(size_t len)
{
	enter();
	void *made = __libc_malloc(len);
	pthread_mutex_unlock(&allocator);
	return made;
}

void *calloc(size_t count, size_t len)
{
	enter();
	void *made = __libc_calloc(count, len);
	pthread_mutex_unlock(&allocator);
	return made;
}

void *realloc(void *before, size_t len)
{
	enter();
	void *made = __libc_realloc(before, len);
	pthread_mutex_unlock(&allocator);
	return made;
}

int posix_memalign(void **place, size_t alignment, size_t len)
{
	enter();
	*place = __libc_memalign(alignment, len);
	pthread_mutex_unlock(&allocator);
	return 0;
}

static void handler(int signal)
{
	exit(7);
}

int main(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context = ibv_open_device(list[0]);
	if (!context)
		return 1;
	signal(SIGUSR1, handler);
	interrupted = 1;
	ibv_alloc_pd(context);
	return 2;
}
