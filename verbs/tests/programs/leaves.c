/* Ends, or forks, with open connections: `leaves MODE ADDRESS PORT`. Modes of the passive end:
 *
 *   server    receives messages until its peer disconnects, and prints their number
 *   taker     ends as soon as it has all messages, without a disconnect
 *   sleeper   answers each message, and stops itself for a while after half of them
 *
 * Modes of the active end, which sends all messages and polls their completions:
 *
 *   exit      ends without a disconnect
 *   drain     makes its channel nonblocking; a handler of `exit` takes the remaining events
 *   fork      ends without a disconnect while a child lives that has inherited all descriptors
 *   abort     destroys its queue pair while such a child lives, and waits
 *   anew      opens the device and listens; a child then does the same as `exit`
 *
 * A child of `fork` or `abort`, and `abort` itself, end with their standard input. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); \
			exit(1); \
		} \
	} while (0)

enum { MESSAGES = 32, LEN = 100000 };

static char memory[LEN];
static struct rdma_event_channel *channel;

static struct rdma_cm_id *next(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channel, &event));
	CHECK(event->event == type);
	struct rdma_cm_id *id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

static struct ibv_mr *make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC, .cap = { MESSAGES, MESSAGES, 1, 1, 0 }, .sq_sig_all = 1,
	};
	CHECK(!rdma_create_qp(id, NULL, &attr));
	struct ibv_mr *mr = ibv_reg_mr(id->pd, memory, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	return mr;
}

static int to_waker;

/* Starts a child that sends SIGCONT to this process every 100 ms; each byte in the pipe begins
 * the 100 ms anew. The child ends with this process. */
static void start_waker(void)
{
	int pipes[2];
	pid_t sleeper = getpid();
	CHECK(!pipe(pipes));
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		struct pollfd told = { .fd = pipes[0], .events = POLLIN };
		char octet;
		close(pipes[1]);
		for (;;) {
			if (!poll(&told, 1, 100))
				kill(sleeper, SIGCONT);
			else if (read(pipes[0], &octet, 1) <= 0)
				_exit(0);
		}
	}
	close(pipes[0]);
	to_waker = pipes[1];
}

/* Stops this process for 100 ms. The peer, when it ends, drains for a second: far longer. */
static void stop(void)
{
	CHECK(write(to_waker, "", 1) == 1);
	CHECK(!raise(SIGSTOP));
}

static void post(struct rdma_cm_id *id, struct ibv_mr *mr, unsigned len)
{
	struct ibv_sge sge = { (uintptr_t)memory, len, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	CHECK(!ibv_post_send(id->qp, &wr, &bad));
}

static int server(struct sockaddr_in *address, int leaves_first, int answers)
{
	struct rdma_cm_id *listener;
	struct rdma_conn_param param = { 0 };
	unsigned i, came = 0;
	CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)address));
	CHECK(!rdma_listen(listener, 1));
	struct rdma_cm_id *id = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	struct ibv_mr *mr = make_qp(id);
	struct ibv_sge sge = { (uintptr_t)memory, LEN, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	for (i = 0; i < MESSAGES; i++)
		CHECK(!ibv_post_recv(id->qp, &wr, &bad));
	CHECK(!rdma_accept(id, &param));
	next(RDMA_CM_EVENT_ESTABLISHED);
	int polls = leaves_first || answers;
	if (!polls)
		next(RDMA_CM_EVENT_DISCONNECTED);
	struct ibv_wc wc;
	int count;
	while ((count = ibv_poll_cq(id->recv_cq, 1, &wc)) == 1 || (polls && came < MESSAGES)) {
		CHECK(count >= 0 && (!polls || !count || wc.status == IBV_WC_SUCCESS));
		came += count == 1 && wc.status == IBV_WC_SUCCESS;
		if (answers && count == 1 && came == MESSAGES / 2)
			stop();
		if (answers && count == 1)
			post(id, mr, 8);
		if (polls && came == MESSAGES)
			break;
	}
	printf("%u messages came\n", came);
	return 0;
}

static struct rdma_cm_id *connected(struct sockaddr_in *address)
{
	struct rdma_cm_id *id;
	struct rdma_conn_param param = { 0 };
	CHECK(channel = rdma_create_event_channel());
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)address, 1000));
	next(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 1000));
	next(RDMA_CM_EVENT_ROUTE_RESOLVED);
	struct ibv_mr *mr = make_qp(id);
	struct ibv_sge sge = { (uintptr_t)memory, LEN, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	unsigned i;
	for (i = 0; i < MESSAGES; i++)
		CHECK(!ibv_post_recv(id->qp, &wr, &bad));
	CHECK(!rdma_connect(id, &param));
	next(RDMA_CM_EVENT_ESTABLISHED);
	for (i = 0; i < MESSAGES; i++)
		post(id, mr, LEN);
	for (i = 0; i < MESSAGES;) {
		struct ibv_wc wc;
		int count = ibv_poll_cq(id->send_cq, 1, &wc);
		CHECK(count >= 0 && (!count || wc.status == IBV_WC_SUCCESS));
		i += count;
	}
	return id;
}

/* Runs after the library's own `atexit` handler, which was registered later. */
static void drain(void)
{
	struct rdma_cm_event *event;
	while (!rdma_get_cm_event(channel, &event))
		rdma_ack_cm_event(event);
}

/* Starts a child that lives until its standard input ends. */
static pid_t live_on(void)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		char octet;
		while (read(0, &octet, 1) > 0)
			;
		_exit(0);
	}
	return child;
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	CHECK(argc == 4 && inet_pton(AF_INET, argv[2], &address.sin_addr) == 1);
	address.sin_port = htons(atoi(argv[3]));
	setvbuf(stdout, NULL, _IOLBF, 0);
	int leaves_first = !strcmp(argv[1], "taker"), answers = !strcmp(argv[1], "sleeper");
	if (leaves_first || answers || !strcmp(argv[1], "server")) {
		if (answers)
			start_waker();
		CHECK(channel = rdma_create_event_channel());
		return server(&address, leaves_first, answers);
	}
	if (!strcmp(argv[1], "anew")) {
		int status, count, pipes[2];
		CHECK(ibv_get_device_list(&count) && count == 1);
		/* Starts the parent's engine before the child exists. */
		struct rdma_event_channel *parents = rdma_create_event_channel();
		struct rdma_cm_id *id;
		struct sockaddr_in any = { .sin_family = AF_INET };
		CHECK(parents && !rdma_create_id(parents, &id, NULL, RDMA_PS_TCP));
		CHECK(!rdma_bind_addr(id, (struct sockaddr *)&any) && !rdma_listen(id, 1));
		CHECK(!pipe(pipes));
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			connected(&address);
			exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
		return 0;
	}
	if (!strcmp(argv[1], "drain"))
		CHECK(!atexit(drain));
	struct rdma_cm_id *id = connected(&address);
	if (!strcmp(argv[1], "drain")) {
		CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK));
		return 0;
	}
	if (strcmp(argv[1], "exit"))
		live_on();
	if (!strcmp(argv[1], "abort")) {
		char octet;
		rdma_destroy_qp(id);
		while (read(0, &octet, 1) > 0)
			;
	}
	return 0;
}
