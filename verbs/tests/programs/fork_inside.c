/* Forks while a thread of the library waits for the reader of its log: `fork_inside PORT`, which is not
 * used. The child opens the device anew and resolves an address. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

/* Not that of `cm.h`, which prints to standard error: the pipe of the log. */
#define CHECK(what) \
	do { \
		if (!(what)) { \
			printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); \
			exit(1); \
		} \
	} while (0)

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

/* The endpoint writes lines to the log about it. */
static void listen_and_close(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	CHECK(channel = rdma_create_event_channel());
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&any));
	/* Another process may have taken the port that was chosen. */
	(void)rdma_listen(id, 1);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void *listens(void *unused)
{
	for (;;)
		listen_and_close();
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

int main(int argc, char **argv)
{
	pthread_t lister, reader;
	static int pipes[2];
	struct pollfd full = { .fd = 2, .events = POLLOUT };
	int status, waited_ms;
	pid_t ended;
	CHECK(argc == 2 && argv[1]);
	setvbuf(stdout, NULL, _IONBF, 0);
	CHECK(!pipe2(pipes, O_CLOEXEC) && dup2(pipes[1], 2) == 2);
	resolve();
	CHECK(!pthread_create(&lister, NULL, listens, NULL));
	/* The log has no reader until the child exists: a thread of the library waits while it writes a
	 * line. A pipe is writable while a page is free. */
	for (waited_ms = 0; poll(&full, 1, 0) == 1; waited_ms++) {
		CHECK(waited_ms < 30000);
		poll(NULL, 0, 1);
	}
	poll(NULL, 0, 20);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		resolve();
		_exit(0);
	}
	CHECK(!pthread_create(&reader, NULL, drains, &pipes[0]));
	for (waited_ms = 0; !(ended = waitpid(child, &status, WNOHANG)); waited_ms++) {
		if (waited_ms > 30000) {
			kill(child, SIGKILL);
			CHECK(!"the child ends");
		}
		poll(NULL, 0, 1);
	}
	CHECK(ended == child && WIFEXITED(status) && !WEXITSTATUS(status));
	puts("all is well");
	_exit(0);
}
