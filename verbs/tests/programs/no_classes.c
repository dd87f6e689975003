/* On an interface of urnic's own, all packets have type of service 0: rdma_set_option refuses
 * another one with EOPNOTSUPP. */
#include "cm.h"

int main(void)
{
	struct rdma_cm_id *id;
	uint8_t none = 0, ecn = 3, some = 0x20, least = 4;
	open_channels();
	CHECK(!rdma_create_id(channels[ACTIVE], &id, NULL, RDMA_PS_TCP));
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &some, 1), EOPNOTSUPP);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &least, 1), EOPNOTSUPP);
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &none, 1));
	/* The lowest two bits are TCP's own (ECN), so they do not count. */
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &ecn, 1));
	CHECK(!rdma_destroy_id(id));
	printf("all is well\n");
	return 0;
}
