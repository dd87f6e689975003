/* Checks the calls of rsockets in one process. With "serve", it is a server for peers of the
 * test. */
#include <fcntl.h>
#include <malloc.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "cm.h"

static struct sockaddr_in address = { .sin_family = AF_INET };
static int listener;

/* Connects two ends. The active end does not block, because one thread makes all calls. */
static void pair(int ends[2])
{
	struct pollfd ready;
	int error = -1;
	socklen_t len = sizeof error;
	ends[0] = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
	CHECK(ends[0] >= 0 && fcntl(ends[0], F_GETFD) >= 0);
	CHECK(!rfcntl(ends[0], F_SETFL, O_NONBLOCK));
	FAILS(rconnect(ends[0], (struct sockaddr *)&address, sizeof address), EINPROGRESS);
	ready = (struct pollfd){ listener, POLLIN };
	CHECK(rpoll(&ready, 1, 10000) == 1 && ready.revents == POLLIN);
	ends[1] = raccept(listener, NULL, NULL);
	CHECK(ends[1] >= 0);
	ready = (struct pollfd){ ends[0], POLLOUT };
	CHECK(rpoll(&ready, 1, 10000) == 1 && ready.revents == POLLOUT);
	CHECK(!rgetsockopt(ends[0], SOL_SOCKET, SO_ERROR, &error, &len) && !error && len == sizeof error);
	CHECK(!rconnect(ends[0], (struct sockaddr *)&address, sizeof address));
	FAILS(rconnect(ends[0], (struct sockaddr *)&address, sizeof address), EISCONN);
	CHECK(rfcntl(ends[0], F_GETFL) & O_NONBLOCK);
	CHECK(!(rfcntl(ends[1], F_GETFL) & O_NONBLOCK));
	CHECK(!rfcntl(ends[0], F_SETFL, 0));
}

static void refused(void)
{
	struct sockaddr_in nowhere = address;
	struct pollfd ready;
	int error = 0, fd = rsocket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof error;
	char octet = 0;
	nowhere.sin_port = htons(1);
	FAILS(rsocket(AF_INET, SOCK_DGRAM, 0), EOPNOTSUPP);
	FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), EOPNOTSUPP);
	FAILS(rsend(fd, &octet, 1, 0), ENOTCONN);
	FAILS(rrecv(fd, &octet, 1, 0), ENOTCONN);
	FAILS(rgetpeername(fd, (struct sockaddr *)&nowhere, &len), ENOTCONN);
	FAILS(raccept(fd, NULL, NULL), EINVAL);
	FAILS(rconnect(fd, (struct sockaddr *)&nowhere, sizeof nowhere), ECONNREFUSED);
	CHECK(!rclose(fd));
	FAILS(rclose(fd), EBADF);
	FAILS(rsend(fd, &octet, 1, 0), EBADF);
	fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	FAILS(rconnect(fd, (struct sockaddr *)&nowhere, sizeof nowhere), EINPROGRESS);
	ready = (struct pollfd){ fd, POLLOUT };
	CHECK(rpoll(&ready, 1, 10000) == 1 && ready.revents == (POLLOUT | POLLERR));
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) && error == ECONNREFUSED);
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) && !error);
	CHECK(!rclose(fd));
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	FAILS(rbind(fd, (struct sockaddr *)&address, 2), EINVAL);
	CHECK(!rbind(fd, (struct sockaddr *)&(struct sockaddr_in){ .sin_family = AF_INET }, sizeof address));
	CHECK(!rlisten(fd, 0));
	CHECK(!rfcntl(fd, F_SETFL, O_NONBLOCK));
	FAILS(raccept(fd, NULL, NULL), EAGAIN);
	CHECK(!rclose(fd));
}

static void options(int fd)
{
	int value = 0, before;
	socklen_t len = sizeof value;
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &before, &len));
	value = 4096;
	CHECK(!rsetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof value));
	CHECK(!rgetsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &len) && value == before);
	value = 1;
	CHECK(!rsetsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value));
	CHECK(!rgetsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len) && value == 1);
	FAILS(rsetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &value, sizeof value), EINVAL);
	FAILS(rsetsockopt(fd, SOL_SOCKET, SO_BROADCAST, &value, sizeof value), EOPNOTSUPP);
	FAILS(rfcntl(fd, F_DUPFD, 3), EOPNOTSUPP);
}

static void names(int ends[2])
{
	struct sockaddr_in local, remote;
	socklen_t len = sizeof local;
	CHECK(!rgetsockname(ends[0], (struct sockaddr *)&local, &len) && len == sizeof local);
	CHECK(!rgetpeername(ends[1], (struct sockaddr *)&remote, &len));
	CHECK(local.sin_port == remote.sin_port && local.sin_addr.s_addr == remote.sin_addr.s_addr);
	CHECK(!rgetpeername(ends[0], (struct sockaddr *)&remote, &len));
	CHECK(remote.sin_port == address.sin_port);
	len = 4;
	CHECK(!rgetpeername(ends[0], (struct sockaddr *)&remote, &len) && len == sizeof remote);
}

static void transfers(int ends[2])
{
	char in[64] = "", out[] = "octets in pieces";
	struct iovec from[3] = { { out, 6 }, { NULL, 0 }, { out + 6, 10 } };
	struct iovec to[2] = { { in, 3 }, { in + 3, 40 } };
	struct msghdr message = { .msg_iov = from, .msg_iovlen = 3 };
	struct pollfd ready[2];
	int pipes[2];
	fd_set reads, writes;
	CHECK(rsendmsg(ends[0], &message, 0) == 16);
	CHECK(rrecv(ends[1], in, 7, MSG_PEEK) == 7 && !memcmp(in, out, 7));
	CHECK(rreadv(ends[1], to, 2) == 16 && !memcmp(in, out, 16));
	FAILS(rrecv(ends[1], in, 1, MSG_DONTWAIT), EAGAIN);
	CHECK(rwritev(ends[1], from, 1) == 6 && rwrite(ends[1], out, 2) == 2);
	CHECK(rrecv(ends[0], in, 8, MSG_WAITALL) == 8 && !memcmp(in, "octetsoc", 8));
	FAILS(rsendto(ends[0], out, 1, 0, (struct sockaddr *)&address, sizeof address), EISCONN);
	CHECK(rsend(ends[0], out, 0, 0) == 0 && rrecv(ends[1], in, 0, 0) == 0);
	/* Polls together with a descriptor of the kernel. */
	CHECK(!pipe(pipes));
	ready[0] = (struct pollfd){ ends[1], POLLIN };
	ready[1] = (struct pollfd){ pipes[0], POLLIN };
	CHECK(rpoll(ready, 2, 20) == 0);
	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(rpoll(ready, 2, 10000) == 1 && ready[1].revents == POLLIN && !ready[0].revents);
	CHECK(rsend(ends[0], out, 1, 0) == 1);
	CHECK(read(pipes[0], in, 1) == 1 && rpoll(ready, 2, 10000) == 1 && ready[0].revents == POLLIN);
	FD_ZERO(&reads);
	FD_ZERO(&writes);
	FD_SET(ends[1], &reads);
	FD_SET(pipes[0], &reads);
	FD_SET(ends[0], &writes);
	CHECK(rselect(1 + (ends[0] > pipes[1] ? ends[0] : 200), &reads, &writes, NULL, NULL) == 2);
	CHECK(FD_ISSET(ends[1], &reads) && !FD_ISSET(pipes[0], &reads) && FD_ISSET(ends[0], &writes));
	CHECK(rread(ends[1], in, 64) == 1);
	close(pipes[0]);
	close(pipes[1]);
}

/* More bytes than all buffers hold, in both directions at once. */
enum { MANY = 3000000 };
static void *send_many(void *end)
{
	unsigned char *octets = malloc(MANY);
	for (int i = 0; i < MANY; i++)
		octets[i] = i * 7 + i / 251;
	CHECK(rsend(*(int *)end, octets, MANY, 0) == MANY);
	free(octets);
	return NULL;
}

static void *receive_many(void *end)
{
	unsigned char *octets = malloc(MANY);
	CHECK(rrecv(*(int *)end, octets, MANY, MSG_WAITALL) == MANY);
	for (int i = 0; i < MANY; i++)
		CHECK(octets[i] == (unsigned char)(i * 7 + i / 251));
	free(octets);
	return NULL;
}

static void many(int ends[2])
{
	pthread_t threads[4];
	for (int i = 0; i < 2; i++) {
		pthread_create(&threads[2 * i], NULL, send_many, &ends[i]);
		pthread_create(&threads[2 * i + 1], NULL, receive_many, &ends[i]);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
}

/* A sender stops while its peer does not read, and may go on when the peer reads. */
static void full(int ends[2])
{
	static char octets[100000];
	struct pollfd ready = { ends[0], POLLOUT };
	ssize_t sent = 0, more, received = 0;
	while ((more = rsend(ends[0], octets, sizeof octets, MSG_DONTWAIT)) > 0 || rpoll(&ready, 1, 100))
		sent += more > 0 ? more : 0;
	CHECK(errno == EAGAIN && sent > 0 && sent < 4000000);
	while (received < sent)
		received += rrecv(ends[1], octets, sizeof octets, 0);
	CHECK(received == sent && rpoll(&ready, 1, 10000) == 1);
}

static void on_alarm(int number) { (void)number; }

static void *shut_down(void *end)
{
	usleep(50000);
	CHECK(!rshutdown(*(int *)end, SHUT_RDWR));
	return NULL;
}

static void sleeps(int ends[2])
{
	struct sigaction action = { .sa_handler = on_alarm };
	pthread_t thread;
	char octet;
	sigaction(SIGALRM, &action, NULL);
	/* The alarm repeats: the first one may come before the thread sleeps. */
	ualarm(50000, 50000);
	FAILS(rrecv(ends[0], &octet, 1, 0), EINTR);
	ualarm(0, 0);
	/* Another thread ends the sleep. */
	pthread_create(&thread, NULL, shut_down, &ends[0]);
	CHECK(rrecv(ends[0], &octet, 1, 0) == 0);
	pthread_join(thread, NULL);
}

static void ends_of(void)
{
	int ends[2];
	char in[16], out[] = "last";
	struct pollfd ready;
	pair(ends);
	/* One direction ends; the other one goes on. */
	CHECK(rsend(ends[0], out, 4, 0) == 4 && !rshutdown(ends[0], SHUT_WR));
	FAILS(rsend(ends[0], out, 1, 0), EPIPE);
	CHECK(rrecv(ends[1], in, 16, MSG_WAITALL) == 4 && !memcmp(in, out, 4));
	CHECK(rrecv(ends[1], in, 16, 0) == 0);
	ready = (struct pollfd){ ends[1], POLLIN };
	CHECK(rpoll(&ready, 1, 0) == 1 && ready.revents == POLLIN);
	CHECK(rsend(ends[1], out, 4, 0) == 4 && !rclose(ends[1]));
	/* The reader gets the bytes that were sent before the end, and then the end. */
	ready = (struct pollfd){ ends[0], POLLIN };
	CHECK(rpoll(&ready, 1, 10000) == 1);
	CHECK(rrecv(ends[0], in, 16, MSG_WAITALL) == 4 && rrecv(ends[0], in, 16, 0) == 0);
	CHECK(rpoll(&ready, 1, 10000) == 1 && ready.revents == (POLLIN | POLLHUP));
	CHECK(!rclose(ends[0]));
	pair(ends);
	CHECK(!rclose(ends[1]));
	CHECK(rrecv(ends[0], in, 1, 0) == 0);
	FAILS(rsend(ends[0], out, 1, 0), ECONNRESET);
	CHECK(!rclose(ends[0]));
}

static void mapped(void)
{
	int ends[2], size = 2;
	char *memory = malloc(8192), out[] = "placed", in[4];
	volatile char *placed = memory + 1005;
	CHECK(!rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &size, sizeof size));
	pair(ends);
	memset(memory, 0, 8192);
	FAILS(riomap(ends[0], memory, 4096, PROT_EXEC, 0, 0), EINVAL);
	/* The passive end has a table for its peer's mappings, because RDMA_IOMAPSIZE is set. The
	 * active end has none, so the passive end cannot map. */
	FAILS(riomap(ends[1], memory, 4096, PROT_WRITE, 0, 0), ENOMEM);
	CHECK(riomap(ends[0], memory, 4096, PROT_WRITE, 0, 500) == 500);
	CHECK(riomap(ends[0], memory, 1, PROT_NONE, 0, -1) == (off_t)(size_t)memory);
	CHECK(riowrite(ends[1], out, 6, 0, 0) == 0);
	CHECK(rsend(ends[0], out, 1, 0) == 1 && rrecv(ends[1], in, 1, 0) == 1);
	CHECK(riowrite(ends[1], out, 6, 1500, 0) == 6);
	while (!*placed)
		;
	CHECK(!memcmp(memory + 1000, out, 6));
	/* The write ends at the end of the mapping. */
	CHECK(riowrite(ends[1], memory, 8, 500 + 4092, 0) == 4);
	CHECK(!riounmap(ends[0], memory, 4096));
	FAILS(riounmap(ends[0], memory, 4096), EINVAL);
	/* A peer that writes to memory that is not mapped any more breaks the protocol. */
	riowrite(ends[1], out, 6, 1500, 0);
	FAILS(rrecv(ends[1], in, 1, 0), ECONNRESET);
	CHECK(!rclose(ends[0]) && !rclose(ends[1]));
	free(memory);
}

static void children(void)
{
	int ends[2], status;
	char octet = 'c';
	pid_t child;
	pair(ends);
	child = fork();
	if (!child) {
		/* The child has the parent's descriptor, but cannot use the parent's connection. */
		FAILS(rsend(ends[0], &octet, 1, 0), EBADF);
		CHECK(!rclose(ends[0]) && fcntl(ends[0], F_GETFD) == -1);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
	CHECK(rsend(ends[0], &octet, 1, 0) == 1 && rrecv(ends[1], &octet, 1, 0) == 1);
	CHECK(!rclose(ends[0]) && !rclose(ends[1]));
}

static int descriptors(void)
{
	int count = 0;
	for (int fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static size_t octets_allocated(void)
{
	struct mallinfo2 heap = mallinfo2();
	return heap.uordblks + heap.hblkhd;
}

static void leaves_nothing(void)
{
	/* Forty ends each have rings of 512 KiB. The memory of a few may still be allocated. */
	enum { FEW = 4 << 20 };
	int ends[2], before = descriptors();
	size_t allocated = octets_allocated();
	for (int i = 0; i < 20; i++) {
		pair(ends);
		CHECK(!rclose(ends[i & 1]) && !rclose(ends[!(i & 1)]));
	}
	/* TCP is closed in the background. */
	for (int i = 0; descriptors() > before || octets_allocated() > allocated + FEW; i++) {
		CHECK(i < 500);
		usleep(10000);
	}
}

/* A peer has as many credits as there are receives. It can use all of them while the reader does
 * not read, more than once, and then the stream goes on. */
static void credits(void)
{
	enum { ROUNDS = 3 };
	int ends[2], queue = 0, sent;
	socklen_t len = sizeof queue;
	char octet;
	pair(ends);
	CHECK(!rgetsockopt(ends[1], SOL_RDMA, RDMA_RQSIZE, &queue, &len) && queue > 0);
	CHECK(!rfcntl(ends[0], F_SETFL, O_NONBLOCK));
	for (int round = 0; round < ROUNDS; round++) {
		struct pollfd ready = { ends[0], POLLOUT };
		for (sent = 0; sent <= queue;) {
			octet = sent;
			if (rsend(ends[0], &octet, 1, 0) == 1) {
				sent++;
				continue;
			}
			CHECK(errno == EAGAIN);
			/* The sender may also wait for completions: while it must still have
			 * credits, the wait is long. */
			if (!rpoll(&ready, 1, sent < (round ? queue / 2 : queue) ? 10000 : 200))
				break;
		}
		CHECK(sent <= queue && sent >= queue / 2);
		if (round == 0)
			CHECK(sent == queue);
		for (int each = 0; each < sent; each++)
			CHECK(rrecv(ends[1], &octet, 1, 0) == 1 && octet == (char)each);
		CHECK(rpoll(&ready, 1, 10000) == 1 && ready.revents == POLLOUT);
	}
	CHECK(!rclose(ends[0]) && !rclose(ends[1]));
}

/* A connection attempt that fails at once leaves no state to the next attempt. */
static void connects_after_an_error(void)
{
	struct sockaddr_in any_port = address;
	struct sockaddr_in6 other = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	int ends[2];
	char in[4];
	any_port.sin_port = 0;
	other.sin6_port = address.sin_port;
	ends[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rbind(ends[0], (struct sockaddr *)&any_port, sizeof any_port));
	FAILS(rconnect(ends[0], (struct sockaddr *)&other, sizeof other), EINVAL);
	CHECK(!rfcntl(ends[0], F_SETFL, O_NONBLOCK));
	FAILS(rconnect(ends[0], (struct sockaddr *)&address, sizeof address), EINPROGRESS);
	CHECK(!rfcntl(ends[0], F_SETFL, 0));
	ends[1] = raccept(listener, NULL, NULL);
	CHECK(ends[1] >= 0 && !rconnect(ends[0], (struct sockaddr *)&address, sizeof address));
	CHECK(rsend(ends[1], "sent", 4, 0) == 4);
	CHECK(rrecv(ends[0], in, 4, MSG_WAITALL) == 4 && !memcmp(in, "sent", 4));
	CHECK(rsend(ends[0], "sent", 4, 0) == 4);
	CHECK(rrecv(ends[1], in, 4, MSG_WAITALL) == 4 && !memcmp(in, "sent", 4));
	CHECK(!rclose(ends[0]) && !rclose(ends[1]));
}

/* Echoes to one peer after the other, and continues if one fails. "over" ends the server. */
static int serve(void)
{
	static char octets[100000];
	puts("serving");
	fflush(stdout);
	for (;;) {
		int fd = raccept(listener, NULL, NULL);
		ssize_t len;
		CHECK(fd >= 0);
		while ((len = rrecv(fd, octets, sizeof octets, 0)) > 0)
			if (len == 4 && !memcmp(octets, "over", 4))
				return rsend(fd, octets, len, 0) != 4 || rclose(fd);
			else if ((len = rsend(fd, octets, len, 0)) < 0)
				break;
		printf("%s\n", len < 0 ? strerror(errno) : "end");
		fflush(stdout);
		rclose(fd);
	}
}

static int ask(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	char in[4];
	CHECK(!rconnect(fd, (struct sockaddr *)&address, sizeof address));
	CHECK(rsend(fd, "over", 4, 0) == 4 && rrecv(fd, in, 4, MSG_WAITALL) == 4);
	CHECK(!memcmp(in, "over", 4) && !rclose(fd));
	puts("all is well");
	return 0;
}

int main(int argc, char **argv)
{
	int ends[2];
	address.sin_port = htons(atoi(argv[1]));
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (argc > 2 && !strcmp(argv[2], "ask"))
		return ask();
	listener = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rbind(listener, (struct sockaddr *)&address, sizeof address));
	/* The test has 40 peers that connect at once: the backlog holds all of them. */
	CHECK(!rlisten(listener, 64));
	if (argc > 2)
		return serve();
	refused();
	pair(ends);
	options(ends[0]);
	names(ends);
	transfers(ends);
	many(ends);
	full(ends);
	sleeps(ends);
	CHECK(!rclose(ends[0]) && !rclose(ends[1]));
	ends_of();
	mapped();
	children();
	credits();
	leaves_nothing();
	connects_after_an_error();
	CHECK(!rclose(listener));
	puts("all is well");
	return 0;
}
