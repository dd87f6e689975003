/* One RDMA Write between two queue pairs of this process. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    do { if (!(condition)) { perror(#condition); exit(1); } } while (0)

static struct ibv_qp *make(struct ibv_pd *pd, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
        .rq_psn = 7, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } },
    };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.sq_psn = 7;
    attr.max_rd_atomic = 1;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

int main(void)
{
    static char from[32] = "hello, remote memory", to[32];
    struct ibv_device **devices = ibv_get_device_list(NULL);
    CHECK(devices && devices[0]);
    struct ibv_context *context = ibv_open_device(devices[0]);
    CHECK(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
    CHECK(pd && cq);
    struct ibv_mr *source = ibv_reg_mr(pd, from, sizeof from, 0);
    struct ibv_mr *sink = ibv_reg_mr(pd, to, sizeof to, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(source && sink);

    union ibv_gid gid;
    CHECK(!ibv_query_gid(context, 1, 0, &gid));
    struct ibv_qp *a = make(pd, cq), *b = make(pd, cq);
    connect_to(a, b->qp_num, gid);
    connect_to(b, a->qp_num, gid);

    struct ibv_sge sge = { (uintptr_t)from, sizeof from, source->lkey };
    struct ibv_send_wr request = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = { .remote_addr = (uintptr_t)to, .rkey = sink->rkey },
    }, *bad;
    CHECK(!ibv_post_send(a, &request, &bad));
    struct ibv_wc wc;
    int count;
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    CHECK(count == 1 && wc.status == IBV_WC_SUCCESS);
    CHECK(!strcmp(from, to));
    printf("written: %s\n", to);
    return 0;
}
