#include <coorp.h>
#include <stdio.h>
#include <stdlib.h>

static void check(CoorpResult result) {
    if (result != COORP_OK) {
        fprintf(stderr, "%s\n", coorp_last_error());
        exit(1);
    }
}

int main(void) {
    CoorpNode *node;
    check(coorp_node_open("team.toml", "r1", NULL, &node));

    // Control: predicted, ahead of bulk, newest wins.
    CoorpPublisher *pose;
    CoorpSubscriber *plans;
    CoorpGather *poses;
    check(coorp_publisher_open(node, "pose", 33000000, 0, &pose)); // period_ns, bound_ns
    check(coorp_subscriber_open(node, "plan", &plans));
    check(coorp_gather_open(node, "pose", 33000000, &poses)); // period_ns
    const CoorpMessage *plan = NULL;
    while (plan == NULL) {
        const float position_m[] = {1.0f, 2.0f};
        check(coorp_publisher_put(pose, position_m, sizeof position_m));
        CoorpResult result = coorp_subscriber_receive(plans, 33000000, &plan);
        if (result != COORP_TIMEOUT)
            check(result);
    }
    printf("plan %.*s of %s\n", (int)plan->length_bytes, (const char *)plan->data, plan->robot);
    coorp_message_free(plan);

    // Bulk: permitted, gated, resumed. It is on the leader's disk once the wait is over.
    static const char gradients[20000000];
    CoorpBulkStream *stream;
    CoorpBulkDelivery *delivery;
    check(coorp_bulk_stream_open(node, "leader", "gradients", &stream));
    check(coorp_bulk_stream_write(stream, gradients, sizeof gradients));
    check(coorp_bulk_stream_finish(stream, &delivery));
    check(coorp_bulk_delivery_wait(delivery, COORP_FOREVER));

    // Gather: the newest state of every robot, with its age.
    const CoorpTable *table;
    check(coorp_gather_receive(poses, 1000000000, &table)); // timeout_ns
    for (size_t i = 0; i < table->state_count; i++)
        printf("%s, %.1f ms old\n", table->states[i].robot, table->states[i].age_ns / 1e6);
    coorp_table_free(table);

    check(coorp_node_close(node)); // and all that was opened with it
    return 0;
}
