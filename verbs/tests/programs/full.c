/* A peer sends more bytes than may wait for receives, and disconnects. The application gets the
 * event although it posts no receive. */
#include "cm.h"

/* MAY_WAIT is the limit of bytes that wait for receives (HELD_BYTES_MAX of the engine). */
enum { LEN = 1 << 16, MAY_WAIT = 4 << 20 };
static char octets[LEN];

int main(int count, char **words)
{
	int port = atoi(words[1]), sends = MAY_WAIT / LEN + 4;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = sends, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	}, made = init;
	struct rdma_conn_param param = { .initiator_depth = 1 };
	struct ibv_wc wc;
	open_channels();
	struct rdma_cm_id *listener = listener_at(port), *id = resolved_to(port), *peer;
	CHECK(!rdma_create_qp(id, NULL, &made) && !rdma_connect(id, &param));
	peer = expect(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST).event.id;
	made = init;
	CHECK(!rdma_create_qp(peer, NULL, &made) && !rdma_accept(peer, &param));
	expect(ACTIVE, RDMA_CM_EVENT_ESTABLISHED);
	expect(PASSIVE, RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_mr *mr = ibv_reg_mr(id->pd, octets, LEN, 0);
	struct ibv_sge sge = { (uintptr_t)octets, LEN, mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 }, *bad;
	for (int i = 0; i < sends; i++)
		CHECK(!ibv_post_send(id->qp, &wr, &bad));
	for (int i = 0; i < sends; i++) {
		while (!ibv_poll_cq(id->send_cq, 1, &wc))
			;
		CHECK(wc.status == IBV_WC_SUCCESS);
	}
	CHECK(!rdma_disconnect(id));
	expect(PASSIVE, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_disconnect(peer));
	rdma_destroy_qp(peer);
	expect(ACTIVE, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(id);
	CHECK(!ibv_dereg_mr(mr) && !rdma_destroy_id(peer) && !rdma_destroy_id(id) && !rdma_destroy_id(listener));
	printf("all is well\n");
	return 0;
}
