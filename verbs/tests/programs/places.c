/* Requests for a queue pair that connects without rdma_cm: how many may wait, and that only the
 * peer's request is accepted. */
#include "cm.h"

/* The limit of waiting requests from one address, and a larger number. */
enum { WAITING_OF_ONE = 128, REQUESTS = 150 };

static int peers[REQUESTS];

/* Returns true if the other end has refused or closed the connection. */
static int is_over(int peer)
{
	char octets[64];
	ssize_t len = recv(peer, octets, sizeof(octets), MSG_DONTWAIT);
	/* A Reply without the reject bit would mean that an impostor was accepted as the peer. */
	CHECK(len < 17 || octets[16] & 0x20);
	return len >= 0 || errno != EAGAIN;
}

static int count_over(void)
{
	int over = 0;
	for (int each = 0; each < REQUESTS; each++) {
		if (peers[each] >= 0 && is_over(peers[each])) {
			close(peers[each]);
			peers[each] = -1;
		}
		over += peers[each] < 0;
	}
	return over;
}

static void wait_for(int over)
{
	for (int tries = 0; count_over() < over; tries++) {
		CHECK(tries < 2000);
		usleep(5000);
	}
}

static void put(unsigned char *place, uint32_t number)
{
	number = htonl(number);
	memcpy(place, &number, 4);
}

/* Sends a Request that names queue pair `from` as its sender, with a proof that matches no PSN. */
static void request(int peer, uint32_t from, uint32_t to)
{
	static const unsigned char own[16] = { [10] = 0xff, 0xff, 127, 0, 0, 1 };
	unsigned char octets[20 + 64] = "MPA ID Req Frame\x40\x01\0\x40uRQP\0\2\0\1";
	memcpy(octets + 28, own, 16);
	put(octets + 44, from);
	memcpy(octets + 48, own, 16);
	put(octets + 64, to);
	memset(octets + 68, 7, 16);
	CHECK(send(peer, octets, sizeof(octets), 0) == sizeof(octets));
}

int main(void)
{
	int count;
	struct ibv_context *context = ibv_open_device(*ibv_get_device_list(&count));
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct sockaddr_in address = at("127.0.0.1", qp->qp_num >> 8);
	/* A queue pair with the smaller number connects: the peer. */
	uint32_t from = qp->qp_num - (1 << 8);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	for (int each = 0; each < REQUESTS; each++) {
		peers[each] = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(!connect(peers[each], (struct sockaddr *)&address, sizeof(address)));
		request(peers[each], from, qp->qp_num);
	}
	wait_for(REQUESTS - WAITING_OF_ONE);
	usleep(100000);
	CHECK(count_over() == REQUESTS - WAITING_OF_ONE);
	/* From now on the queue pair knows its peer and the peer's PSN. No request proves that
	 * PSN, so all are refused. */
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = from, .rq_psn = 0x123456,
		.ah_attr = { .is_global = 1, .port_num = 1 },
	};
	attr.ah_attr.grh.dgid.raw[10] = attr.ah_attr.grh.dgid.raw[11] = 0xff;
	attr.ah_attr.grh.dgid.raw[12] = 127;
	attr.ah_attr.grh.dgid.raw[15] = 1;
	CHECK(!ibv_modify_qp(qp, &attr,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	wait_for(REQUESTS);
	/* One place is free again. A later request is checked at once. */
	peers[0] = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(!connect(peers[0], (struct sockaddr *)&address, sizeof(address)));
	request(peers[0], from, qp->qp_num);
	wait_for(REQUESTS);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	printf("all is well\n");
	return 0;
}
