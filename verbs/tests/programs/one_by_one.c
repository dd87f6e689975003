/* Opens connections one after the other to one listener, by rsockets or by rdma_cm. The last
 * ones cost the server no more than the first ones, and leave no descriptor, thread or memory
 * behind. */
#include "cm.h"
#include <dirent.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <sys/wait.h>
#include <time.h>

/* The connections come in PARTS parts. The last part may take MORE_TIMES the processor time of
 * the second. */
enum { PARTS = 4, MORE_TIMES = 3 };
/* Memory, in KiB, that allocators may keep. */
#define RESIDENT_MORE 6144

static int port, count;

/* Returns the processor time that this process has used, in milliseconds. */
static double used(void)
{
	struct timespec time;
	CHECK(!clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time));
	return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static int entries(const char *path)
{
	DIR *folder = opendir(path);
	int entries = 0;
	CHECK(folder);
	while (readdir(folder))
		entries++;
	closedir(folder);
	return entries;
}

static long resident(void)
{
	long pages, all;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file && fscanf(file, "%ld %ld", &all, &pages) == 2);
	fclose(file);
	return pages * sysconf(_SC_PAGESIZE) / 1024;
}

struct holdings {
	int descriptors, threads;
	long resident;
};

static struct holdings holdings(void)
{
	return (struct holdings){ entries("/proc/self/fd"), entries("/proc/self/task"), resident() };
}

/* Accepts all connections, and compares what they cost. */
static void serve(void (*one)(void))
{
	struct holdings first = { 0 }, last;
	double parts[PARTS], begin, idle;
	for (int part = 0; part < PARTS; part++) {
		begin = used();
		for (int each = 0; each < count / PARTS; each++)
			one();
		parts[part] = used() - begin;
		if (part == 0)
			first = holdings();
	}
	/* The last connections may still be closing. */
	for (int tries = 0; tries < 1000; tries++) {
		last = holdings();
		if (last.descriptors <= first.descriptors && last.threads <= first.threads)
			break;
		usleep(10000);
	}
	begin = used();
	usleep(500000);
	idle = used() - begin;
	printf("parts of %d: %.0f %.0f %.0f %.0f ms; idle: %.0f ms of 500; descriptors %d, %d; threads %d, %d; KiB %ld, %ld\n",
	       count / PARTS, parts[0], parts[1], parts[2], parts[3], idle, first.descriptors, last.descriptors,
	       first.threads, last.threads, first.resident, last.resident);
	CHECK(last.descriptors <= first.descriptors && last.threads <= first.threads);
	CHECK(last.resident <= first.resident + RESIDENT_MORE);
	CHECK(parts[PARTS - 1] <= MORE_TIMES * parts[1] + 100);
	CHECK(idle < 200);
}

static int listener;

static void accept_socket(void)
{
	char octet = 'x';
	int fd = raccept(listener, NULL, NULL);
	CHECK(fd >= 0);
	CHECK(rsend(fd, &octet, 1, 0) == 1);
	CHECK(rrecv(fd, &octet, 1, 0) == 0);
	CHECK(!rclose(fd));
}

static void connect_socket(void)
{
	struct sockaddr_in address = at("127.0.0.1", port);
	char octet;
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !rconnect(fd, (struct sockaddr *)&address, sizeof(address)));
	CHECK(rrecv(fd, &octet, 1, 0) == 1);
	CHECK(!rclose(fd));
}

static const struct ibv_qp_init_attr like = {
	.qp_type = IBV_QPT_RC,
	.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
};

static void accept_id(void)
{
	struct ibv_qp_init_attr init = like;
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_id *id = expect(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST).event.id;
	CHECK(!rdma_create_qp(id, NULL, &init) && !rdma_accept(id, &param));
	expect(PASSIVE, RDMA_CM_EVENT_ESTABLISHED);
	expect(PASSIVE, RDMA_CM_EVENT_DISCONNECTED);
	rdma_disconnect(id);
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
}

static void connect_id(void)
{
	struct ibv_qp_init_attr init = like;
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_id *id = resolved_to(port);
	CHECK(!rdma_create_qp(id, NULL, &init) && !rdma_connect(id, &param));
	expect(ACTIVE, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!rdma_disconnect(id));
	expect(ACTIVE, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
}

/* Ends the server if the client fails: the server would wait for the next connection for ever. */
static void *wait_for_client(void *client)
{
	int status;
	CHECK(waitpid(*(pid_t *)client, &status, 0) == *(pid_t *)client && !status);
	return NULL;
}

int main(int words, char **word)
{
	int by_sockets = !strcmp(word[1], "rsocket");
	pthread_t waits;
	port = atoi(word[2]);
	count = atoi(word[3]);
	pid_t client = fork();
	if (!client) {
		if (!by_sockets)
			open_channels();
		for (int each = 0; each < count / PARTS * PARTS; each++)
			(by_sockets ? connect_socket : connect_id)();
		return 0;
	}
	CHECK(!pthread_create(&waits, NULL, wait_for_client, &client));
	if (by_sockets) {
		struct sockaddr_in address = at("127.0.0.1", port);
		listener = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(!rbind(listener, (struct sockaddr *)&address, sizeof(address)) && !rlisten(listener, 64));
		serve(accept_socket);
	} else {
		open_channels();
		listener_at(port);
		serve(accept_id);
	}
	CHECK(!pthread_join(waits, NULL));
	printf("all is well\n");
	return 0;
}
