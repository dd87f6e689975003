/* Calls `exit` in a signal handler that interrupts an allocation. From then on this file's
 * allocator holds its lock, as the allocator of the C library does: a thread that allocates
 * blocks for ever. `free` takes no lock in the C library either, and `exit` calls it. */
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
