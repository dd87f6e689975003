/* Calls `exit` in a signal handler, a given number of microseconds after the first round of
 * calls: at some point inside the library. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>

static void handler(int signal)
{
	exit(7);
}

static void make_and_destroy(struct ibv_device *device)
{
	static char buffer[4096];
	struct ibv_context *context = ibv_open_device(device);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *id;
	rdma_create_id(channel, &id, NULL, RDMA_PS_TCP);
	rdma_bind_addr(id, (struct sockaddr *)&address);
	rdma_listen(id, 4);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
	ibv_destroy_qp(qp);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
}

int main(int count, char **words)
{
	struct itimerval after = { .it_value = { .tv_usec = atoi(words[1]) } };
	int devices;
	struct ibv_device **list = ibv_get_device_list(&devices);
	make_and_destroy(list[0]);
	signal(SIGALRM, handler);
	setitimer(ITIMER_REAL, &after, NULL);
	for (;;)
		make_and_destroy(list[0]);
}
