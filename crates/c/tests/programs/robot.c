// A robot in C: publishes its pose, follows the base's plan, and exchanges bulk with it.
// Arguments: team file, robot, state folder, "guest" or "robot".

#include "content.h"
#include <coorp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAP_BYTES 5000003
#define PERIOD_NS 10000000

static void check(CoorpResult result, int line) {
    if (result != COORP_OK) {
        fprintf(stderr, "robot.c:%d: result %d: %s\n", line, (int)result, coorp_last_error());
        exit(1);
    }
}

static void hold(int holds, const char *what, int line) {
    if (!holds) {
        fprintf(stderr, "robot.c:%d: not so: %s\n", line, what);
        exit(1);
    }
}

#define CHECK(call) check((call), __LINE__)
#define HOLD(condition) hold((condition), #condition, __LINE__)

static CoorpPublisher *pose;
static CoorpSubscriber *plans;
static char own[64];
static uint64_t last_sequence;

// Publishes for one period. Returns whether the plan was this.
static int drive(const char *until) {
    const CoorpMessage *plan;
    CHECK(coorp_publisher_put(pose, own, strlen(own)));
    CoorpResult result = coorp_subscriber_receive(plans, PERIOD_NS, &plan);
    if (result == COORP_TIMEOUT) {
        HOLD(plan == NULL);
        return 0;
    }
    check(result, __LINE__);
    HOLD(strcmp(plan->robot, "base") == 0);
    HOLD(strcmp(plan->path, "127.0.0.1") == 0);
    HOLD(last_sequence == 0 || plan->sequence > last_sequence);
    HOLD((plan->age_ns < 0) == (plan->age_error_ns < 0));
    last_sequence = plan->sequence;
    int is_it = plan->length_bytes == strlen(until) && memcmp(plan->data, until, plan->length_bytes) == 0;
    CHECK(coorp_message_free(plan));
    return is_it;
}

static void send_map(CoorpNode *node, uint64_t seed) {
    unsigned char *map = malloc(MAP_BYTES);
    HOLD(map != NULL);
    fill(map, MAP_BYTES, seed);
    char name[64];
    name_of(name, "map", map, MAP_BYTES);
    CoorpBulkStream *stream;
    CoorpBulkDelivery *delivery;
    CHECK(coorp_bulk_stream_open(node, "base", name, &stream));
    CHECK(coorp_bulk_stream_write(stream, map, 3));
    CHECK(coorp_bulk_stream_write(stream, map + 3, MAP_BYTES - 3));
    CHECK(coorp_bulk_stream_finish(stream, &delivery));
    free(map);
    HOLD(coorp_bulk_stream_close(stream) == COORP_CLOSED);
    CoorpResult result;
    while ((result = coorp_bulk_delivery_wait(delivery, 0)) == COORP_TIMEOUT)
        drive("");
    check(result, __LINE__);
    CHECK(coorp_bulk_delivery_wait(delivery, COORP_FOREVER));
    CHECK(coorp_bulk_delivery_close(delivery));
}

static void receive_model(CoorpNode *node) {
    CoorpBulkReceiver *receiver;
    CHECK(coorp_bulk_receiver_open(node, &receiver));
    const CoorpBulkMessage *model = NULL;
    CoorpResult result;
    while ((result = coorp_bulk_receiver_receive(receiver, 0, &model)) == COORP_TIMEOUT)
        drive("");
    check(result, __LINE__);
    HOLD(strcmp(model->robot, "base") == 0);
    const void *data;
    CHECK(coorp_bulk_message_take(model, &data));
    HOLD(is_whole(model->name, "model", data, model->length_bytes));
    HOLD(coorp_bulk_message_take(model, &data) == COORP_INVALID && data == NULL);
    HOLD(strstr(coorp_last_error(), "has already been taken") != NULL);
    CHECK(coorp_bulk_message_free(model));
    CHECK(coorp_bulk_receiver_close(receiver));
}

int main(int count, char **arguments) {
    HOLD(count == 5);
    CoorpOptions options = {0};
    options.state_folder = arguments[3];
    CoorpNode *node;
    CHECK(coorp_node_open(arguments[1], arguments[2], &options, &node));
    bool is_guest;
    CHECK(coorp_node_is_guest(node, &is_guest));
    HOLD(is_guest == (strcmp(arguments[4], "guest") == 0));

    snprintf(own, sizeof own, "here is %s", arguments[2]);
    CHECK(coorp_publisher_open(node, "pose", PERIOD_NS, 20000000, &pose));
    CHECK(coorp_subscriber_open(node, "plan", &plans));
    while (!drive("straight on")) {
    }
    send_map(node, checksum(own, strlen(own)));
    receive_model(node);
    while (!drive("end")) {
    }
    CHECK(coorp_node_close(node));
    puts("done");
    return 0;
}
