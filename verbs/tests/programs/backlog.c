/* A listener keeps as many requests as its application asks for. */
#include "cm.h"
#include <sys/resource.h>

/* More requests than the default limits of a listener and of an endpoint, if descriptors
 * suffice. With fewer than LEAST, the test would prove nothing. */
enum { REQUESTS = 1500, LEAST = 513 };

/* The head of an MPA Request of revision 1, with CRC and without Private Data. */
static const char request[20] = "MPA ID Req Frame\x40\x01\0";

int main(int count, char **words)
{
	static int peers[REQUESTS];
	int port = atoi(words[1]), requests = REQUESTS;
	struct sockaddr_in address = at("127.0.0.1", port);
	struct rdma_cm_id *listener;
	struct rlimit limit;
	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = limit.rlim_max;
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	if (limit.rlim_max < 2 * REQUESTS + 100)
		requests = limit.rlim_max < 100 ? 0 : (limit.rlim_max - 100) / 2;
	if (requests < LEAST) {
		printf("skipped: %llu descriptors are too few\n", (unsigned long long)limit.rlim_max);
		return 0;
	}
	open_channels();
	CHECK(!rdma_create_id(channels[PASSIVE], &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&address) && !rdma_listen(listener, 100000));
	for (int each = 0; each < requests; each++) {
		peers[each] = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(!connect(peers[each], (struct sockaddr *)&address, sizeof(address)));
		CHECK(send(peers[each], request, sizeof(request), 0) == sizeof(request));
	}
	/* Each request is reported: none was dropped for another one. */
	for (int each = 0; each < requests; each++) {
		struct rdma_cm_id *id = expect(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST).event.id;
		CHECK(!rdma_reject(id, NULL, 0) && !rdma_destroy_id(id));
	}
	for (int each = 0; each < requests; each++) {
		char reply[20];
		CHECK(recv(peers[each], reply, sizeof(reply), MSG_WAITALL) == sizeof(reply));
		CHECK(!memcmp(reply, "MPA ID Rep Frame", 16) && reply[16] & 0x20);
		close(peers[each]);
	}
	CHECK(!rdma_destroy_id(listener));
	printf("all is well\n");
	return 0;
}
