/* `gone PORT` destroys the objects at which its threads wait, and ends. PORT is not used. Three
 * threads wait before the objects are destroyed; three begin to wait afterwards, when the memory
 * of the objects is in use for something else. No wait may return before the process ends. A
 * call of the main thread fails with EBADF. */
#define _GNU_SOURCE /* gettid */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); \
			_exit(1); \
		} \
	} while (0)

static struct rdma_event_channel *channel;
static struct ibv_context *context;
static struct ibv_comp_channel *completions;
static sem_t destroyed;

static int next_event(void)
{
	struct rdma_cm_event *event;
	return rdma_get_cm_event(channel, &event);
}

static int next_queue(void)
{
	struct ibv_cq *cq;
	void *cq_context;
	return ibv_get_cq_event(completions, &cq, &cq_context);
}

static int next_async_event(void)
{
	struct ibv_async_event event;
	return ibv_get_async_event(context, &event);
}

static int (*const waits[])(void) = { next_event, next_queue, next_async_event };
enum { WAITS = 3 };

/* Thread ids of the waiting threads, in the order of `waits`. */
static _Atomic pid_t waiting[WAITS];

static void *wait_now(void *next)
{
	waiting[(int (*const *)(void))next - waits] = gettid();
	int answer = (*(int (*const *)(void))next)();
	printf("a thread that waited was told %d (errno %d)\n", answer, errno);
	_exit(2);
}

static void *wait_later(void *next)
{
	CHECK(!sem_wait(&destroyed));
	return wait_now(next);
}

/* Returns true if each of the threads sleeps. */
static int all_sleep(void)
{
	for (int i = 0; i < WAITS; i++) {
		char path[64], stat[512];
		snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)waiting[i]);
		FILE *file = waiting[i] ? fopen(path, "r") : NULL;
		if (!file)
			return 0;
		stat[fread(stat, 1, sizeof stat - 1, file)] = 0;
		fclose(file);
		/* The name stands before the last parenthesis, and may contain any character. */
		const char *state = strrchr(stat, ')');
		if (!state || state[1] != ' ' || state[2] != 'S')
			return 0;
	}
	return 1;
}

/* Waits until the threads sleep, and still sleep at the next look: before its wait a thread may
 * sleep at a lock for a short time. */
static void await_sleep(void)
{
	for (int seen = 0, looks = 0; seen < 2; looks++) {
		CHECK(looks < 1000);
		usleep(10000);
		seen = all_sleep() ? seen + 1 : 0;
	}
}

/* Allocates the freed memory again, and overwrites it. */
static void use_again(void)
{
	for (size_t len = 16; len <= 1024; len += 16)
		for (int i = 0; i < 16; i++) {
			char *memory = malloc(len);
			CHECK(memory);
			memset(memory, 0x41, len);
		}
}

int main(int argc, char **argv)
{
	int count;
	pthread_t thread;
	CHECK(argc == 2 && argv[1]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(!sem_init(&destroyed, 0, 0));
	struct ibv_device **devices = ibv_get_device_list(&count);
	CHECK(devices && count == 1);
	CHECK(context = ibv_open_device(devices[0]));
	ibv_free_device_list(devices);
	CHECK(completions = ibv_create_comp_channel(context));
	CHECK(channel = rdma_create_event_channel());
	for (int i = 0; i < WAITS; i++) {
		CHECK(!pthread_create(&thread, NULL, wait_now, (void *)&waits[i]));
		CHECK(!pthread_create(&thread, NULL, wait_later, (void *)&waits[i]));
	}
	await_sleep();
	CHECK(!ibv_destroy_comp_channel(completions));
	CHECK(!ibv_close_device(context));
	rdma_destroy_event_channel(channel);
	use_again();
	for (int i = 0; i < WAITS; i++) {
		errno = 0;
		CHECK(waits[i]() == -1 && errno == EBADF);
	}
	for (int i = 0; i < WAITS; i++)
		CHECK(!sem_post(&destroyed));
	/* By now the other three threads wait. */
	usleep(100000);
	printf("all is well\n");
	return 0;
}
