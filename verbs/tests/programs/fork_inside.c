/* Forks while other threads of the process are inside calls of the library, and while its log waits
 * for a reader: `fork_inside PORT`, which is not used. Each child opens the device anew and resolves an
 * address. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); \
			exit(1); \
		} \
	} while (0)

enum { ROUNDS = 200 };

static void resolve(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(1) };
	struct rdma_event_channel *channel;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(channel = rdma_create_event_channel());
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000));
	CHECK(!rdma_get_cm_event(channel, &event));
	CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void open_and_close(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !rclose(fd));
}

/* The endpoint writes lines to the log about it. */
static void listen_and_close(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	CHECK(channel = rdma_create_event_channel());
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&any));
	CHECK(!rdma_listen(id, 1));
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void *resolves(void *unused)
{
	for (;;) {
		resolve();
		listen_and_close();
	}
	return unused;
}

static void *opens(void *unused)
{
	for (;;)
		open_and_close();
	return unused;
}

/* The log's reader: reads all that comes, until no process writes any more. */
static void *drains(void *from)
{
	static char text[65536];
	while (read(*(int *)from, text, sizeof text) > 0)
		;
	return NULL;
}

/* Waits for a child, at most 30 seconds. */
static void ends_well(pid_t child, int round)
{
	int status, waited_ms;
	pid_t ended;
	for (waited_ms = 0; !(ended = waitpid(child, &status, WNOHANG)); waited_ms++) {
		if (waited_ms > 30000) {
			printf("the child of round %d does not end\n", round);
			kill(child, SIGKILL);
			exit(1);
		}
		poll(NULL, 0, 1);
	}
	CHECK(ended == child && WIFEXITED(status) && !WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	pthread_t threads[4], reader;
	static int pipes[2];
	int round, i;
	CHECK(argc == 2);
	setvbuf(stdout, NULL, _IONBF, 0);
	CHECK(!pipe2(pipes, O_CLOEXEC) && dup2(pipes[1], 2) == 2);
	resolve();
	for (i = 0; i < 4; i++)
		CHECK(!pthread_create(&threads[i], NULL, i % 2 ? opens : resolves, NULL));
	for (round = 0; round < ROUNDS; round++) {
		/* In the first round the log has no reader until the child exists: threads that write
		 * lines wait inside the call. */
		struct pollfd full = { .fd = 2, .events = POLLOUT };
		if (!round) {
			/* A pipe is writable while a page is free. */
			for (i = 0; i < 10000 && poll(&full, 1, 0) == 1; i++)
				poll(NULL, 0, 1);
			poll(NULL, 0, 20);
		}
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			resolve();
			open_and_close();
			_exit(0);
		}
		if (!round)
			CHECK(!pthread_create(&reader, NULL, drains, &pipes[0]));
		ends_well(child, round);
	}
	puts("all is well");
	_exit(0);
}
