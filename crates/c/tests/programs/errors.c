// What is refused, and how, and that closing ends waits. Arguments: team file, state folder.

#define _POSIX_C_SOURCE 200809L // barriers

#include <coorp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(CoorpResult is, CoorpResult should_be, const char *said, int line) {
    if (is != should_be || (is != COORP_OK && strstr(coorp_last_error(), said) == NULL)) {
        fprintf(stderr, "errors.c:%d: result %d, not %d with '%s': %s\n", line, (int)is, (int)should_be, said,
                coorp_last_error());
        exit(1);
    }
}

#define EXPECT(call, result, said) expect((call), (result), (said), __LINE__)
#define CHECK(call) EXPECT((call), COORP_OK, "")
#define HOLD(condition) expect((condition) ? COORP_OK : COORP_BUG, COORP_OK, #condition, __LINE__)

static const char *team, *state;
static CoorpNode *node;

static void opening(void) {
    CoorpOptions options = {0};
    node = (CoorpNode *)1;
    EXPECT(coorp_node_open(NULL, "base", NULL, &node), COORP_INVALID, "team_file is NULL");
    HOLD(node == NULL);
    EXPECT(coorp_node_open(team, NULL, NULL, &node), COORP_INVALID, "robot is NULL");
    EXPECT(coorp_node_open(team, "base", NULL, NULL), COORP_INVALID, "node is NULL");
    EXPECT(coorp_node_open("missing.toml", "base", NULL, &node), COORP_INVALID, "cannot read missing.toml");
    EXPECT(coorp_node_open(team, "nobody", NULL, &node), COORP_INVALID, "nobody");
    EXPECT(coorp_node_open(team, "\xff", NULL, &node), COORP_INVALID, "robot is not UTF-8");
    options.policy = "best";
    EXPECT(coorp_node_open(team, "base", &options, &node), COORP_INVALID, "choose one of edca,");

    options.policy = "edca";
    options.state_folder = state;
    options.insecure = true;
    CoorpBulkReceiver *receiver;
    CHECK(coorp_node_open(team, "base", &options, &node));
    EXPECT(coorp_bulk_receiver_open(node, &receiver), COORP_INVALID, "bulk needs the team's keys");
    CHECK(coorp_node_close(node));

    options.policy = NULL;
    options.insecure = false;
    CHECK(coorp_node_open(team, "base", &options, &node));
    CoorpNode *twin = node;
    EXPECT(coorp_node_open(team, "base", &options, &twin), COORP_FAILED, "");
    HOLD(twin == NULL);
}

static void handles(void) {
    bool is_guest;
    CoorpPublisher *publisher;
    CHECK(coorp_publisher_open(node, "pose", 0, 0, &publisher));
    EXPECT(coorp_node_is_guest((CoorpNode *)publisher, &is_guest), COORP_INVALID, "a CoorpPublisher, not a CoorpNode");
    EXPECT(coorp_node_is_guest(NULL, &is_guest), COORP_INVALID, "the CoorpNode is NULL");
    EXPECT(coorp_node_is_guest(node, NULL), COORP_INVALID, "is_guest is NULL");
    EXPECT(coorp_publisher_put((CoorpPublisher *)(uintptr_t)0xdeadbeef, NULL, 0), COORP_INVALID, "no CoorpPublisher");
    EXPECT(coorp_publisher_put((CoorpPublisher *)&publisher, NULL, 0), COORP_INVALID, "no CoorpPublisher");
    CHECK(coorp_publisher_close(publisher));
    EXPECT(coorp_publisher_put(publisher, NULL, 0), COORP_CLOSED, "CoorpPublisher has been closed");
    EXPECT(coorp_publisher_close(publisher), COORP_CLOSED, "has been closed");
    CHECK(coorp_publisher_close(NULL));
    CHECK(coorp_subscriber_close(NULL));
    CHECK(coorp_message_free(NULL));
    CHECK(coorp_bulk_stream_close(NULL));
    CHECK(coorp_bulk_delivery_close(NULL));
    CHECK(coorp_bulk_receiver_close(NULL));
    CHECK(coorp_bulk_message_free(NULL));
    CHECK(coorp_gather_close(NULL));
    CHECK(coorp_table_free(NULL));
    CHECK(coorp_node_close(NULL));
}

static void control(void) {
    CoorpPublisher *publisher;
    CoorpSubscriber *subscriber;
    const CoorpMessage *message;
    EXPECT(coorp_publisher_open(node, "a/b", 0, 0, &publisher), COORP_INVALID, "cannot be a name");
    EXPECT(coorp_publisher_open(node, "pose", 1, 0, &publisher), COORP_INVALID, "cannot be predicted");
    CHECK(coorp_publisher_open(node, "pose", 0, 0, &publisher));
    CHECK(coorp_subscriber_open(node, "pose", &subscriber));
    EXPECT(coorp_subscriber_receive(subscriber, 0, &message), COORP_TIMEOUT, "no message arrived on \"pose\" within 0");
    EXPECT(coorp_subscriber_receive(subscriber, 1500000, &message), COORP_TIMEOUT, "within 1.5");
    HOLD(message == NULL);
    EXPECT(coorp_publisher_put(publisher, NULL, 3), COORP_INVALID, "data is NULL");
    EXPECT(coorp_publisher_put(publisher, "x", SIZE_MAX), COORP_INVALID, "more than memory");
    char *large = calloc(1, COORP_CONTROL_BYTES_MAX + 1);
    HOLD(large != NULL);
    EXPECT(coorp_publisher_put(publisher, large, COORP_CONTROL_BYTES_MAX + 1), COORP_INVALID, "send it as bulk");
    free(large);
    CHECK(coorp_publisher_put(publisher, NULL, 0));
    CHECK(coorp_subscriber_receive(subscriber, COORP_FOREVER, &message));
    HOLD(strcmp(message->robot, "base") == 0 && message->sequence == 0 && message->length_bytes == 0);
    CHECK(coorp_message_free(message));
    EXPECT(coorp_message_free(message), COORP_INVALID, "has been freed");
    CHECK(coorp_publisher_close(publisher));
    CHECK(coorp_subscriber_close(subscriber));
}

static void gather(void) {
    CoorpGather *first, *second;
    const CoorpTable *table;
    EXPECT(coorp_gather_open(node, "pose", 0, &first), COORP_INVALID, "cannot gather");
    CHECK(coorp_gather_open(node, "pose", 60000000000, &first));
    EXPECT(coorp_gather_open(node, "pose", 1000000, &second), COORP_INVALID, "already gathers \"pose\"");
    EXPECT(coorp_gather_receive(first, 1000000, &table), COORP_TIMEOUT, "no table of \"pose\" was made within 1");
    CHECK(coorp_gather_close(first));
    EXPECT(coorp_gather_receive(first, 0, &table), COORP_CLOSED, "CoorpGather has been closed");
}

static void bulk(void) {
    CoorpBulkStream *stream;
    CoorpBulkDelivery *delivery, *first = NULL;
    EXPECT(coorp_bulk_stream_open(node, "nobody", "map", &stream), COORP_INVALID, "nobody");
    EXPECT(coorp_bulk_stream_open(node, "base", "map", &stream), COORP_INVALID, "");
    EXPECT(coorp_bulk_stream_open(node, "r1", "", &stream), COORP_INVALID, "cannot be a name");
    CHECK(coorp_bulk_stream_open(node, "r1", "map", &stream));
    EXPECT(coorp_bulk_stream_write_file(stream, "missing"), COORP_INVALID, "cannot read missing");
    EXPECT(coorp_bulk_stream_write_file(stream, "/"), COORP_INVALID, "not a regular file");
    EXPECT(coorp_bulk_stream_write(stream, NULL, 1), COORP_INVALID, "data is NULL");
    CHECK(coorp_bulk_stream_write(stream, NULL, 0));
    CHECK(coorp_bulk_stream_close(stream));
    EXPECT(coorp_bulk_stream_write(stream, "x", 1), COORP_CLOSED, "CoorpBulkStream has been closed");

    // r1 is not there.
    CoorpResult result = COORP_OK;
    int finished = 0;
    while (result == COORP_OK) {
        CHECK(coorp_bulk_stream_open(node, "r1", "map", &stream));
        CHECK(coorp_bulk_stream_write(stream, "x", 1));
        result = coorp_bulk_stream_finish(stream, first == NULL ? &first : NULL);
        finished += result == COORP_OK;
    }
    EXPECT(result, COORP_FULL, "64 bulk messages already wait for r1");
    HOLD(finished >= 64);
    CHECK(coorp_bulk_stream_write(stream, "y", 1));
    EXPECT(coorp_bulk_stream_finish(stream, &delivery), COORP_FULL, "64");
    HOLD(delivery == NULL);
    CHECK(coorp_bulk_stream_close(stream));
    EXPECT(coorp_bulk_delivery_wait(first, 0), COORP_TIMEOUT, "the message was not delivered within 0");
    CHECK(coorp_bulk_delivery_close(first));
    EXPECT(coorp_bulk_delivery_wait(first, COORP_FOREVER), COORP_CLOSED, "CoorpBulkDelivery has been closed");
}

static pthread_barrier_t begun;

// Each waits until it or its node is closed, and has its own last error.
static void *wait_for_message(void *subscriber) {
    const CoorpMessage *message;
    HOLD(strcmp(coorp_last_error(), "") == 0);
    pthread_barrier_wait(&begun);
    EXPECT(coorp_subscriber_receive(subscriber, COORP_FOREVER, &message), COORP_CLOSED, "has been closed");
    return NULL;
}

static void *wait_for_bulk(void *receiver) {
    const CoorpBulkMessage *message;
    pthread_barrier_wait(&begun);
    EXPECT(coorp_bulk_receiver_receive(receiver, COORP_FOREVER, &message), COORP_CLOSED, "has been closed");
    return NULL;
}

static void *wait_for_table(void *gather) {
    const CoorpTable *table;
    pthread_barrier_wait(&begun);
    EXPECT(coorp_gather_receive(gather, COORP_FOREVER, &table), COORP_CLOSED, "has been closed");
    return NULL;
}

static void *wait_for_delivery(void *delivery) {
    pthread_barrier_wait(&begun);
    EXPECT(coorp_bulk_delivery_wait(delivery, COORP_FOREVER), COORP_CLOSED, "has been closed");
    return NULL;
}

static void closing(void) {
    CoorpSubscriber *subscriber, *other;
    CoorpBulkReceiver *receiver;
    CoorpGather *gather;
    CoorpBulkStream *stream;
    CoorpBulkDelivery *delivery;
    CHECK(coorp_subscriber_open(node, "plan", &subscriber));
    CHECK(coorp_subscriber_open(node, "plan", &other));
    CHECK(coorp_bulk_receiver_open(node, &receiver));
    CHECK(coorp_gather_open(node, "pose", 60000000000, &gather));
    CHECK(coorp_bulk_stream_open(node, "r2", "map", &stream));
    CHECK(coorp_bulk_stream_finish(stream, &delivery));
    EXPECT(coorp_node_is_guest(NULL, NULL), COORP_INVALID, "is_guest");

    void *(*const waits[])(void *) = {wait_for_message, wait_for_message, wait_for_bulk, wait_for_table,
                                      wait_for_delivery};
    void *const on[] = {subscriber, other, receiver, gather, delivery};
    pthread_t threads[5];
    HOLD(pthread_barrier_init(&begun, NULL, 6) == 0);
    for (int i = 0; i < 5; i++)
        HOLD(pthread_create(&threads[i], NULL, waits[i], on[i]) == 0);
    pthread_barrier_wait(&begun);
    CHECK(coorp_subscriber_close(subscriber));
    HOLD(pthread_join(threads[0], NULL) == 0);
    CHECK(coorp_node_close(node));
    for (int i = 1; i < 5; i++)
        HOLD(pthread_join(threads[i], NULL) == 0);
    HOLD(strcmp(coorp_last_error(), "is_guest is NULL") == 0);

    const CoorpMessage *message;
    EXPECT(coorp_subscriber_receive(other, 0, &message), COORP_CLOSED, "CoorpSubscriber has been closed");
    EXPECT(coorp_subscriber_open(node, "plan", &other), COORP_CLOSED, "CoorpNode has been closed");
    EXPECT(coorp_bulk_receiver_close(receiver), COORP_CLOSED, "CoorpBulkReceiver has been closed");
    EXPECT(coorp_node_close(node), COORP_CLOSED, "CoorpNode has been closed");
}

int main(int count, char **arguments) {
    HOLD(count == 3 && strcmp(coorp_last_error(), "") == 0 && strchr(coorp_version(), '.') != NULL);
    team = arguments[1];
    state = arguments[2];
    opening();
    handles();
    control();
    gather();
    bulk();
    closing();
    puts("done");
    return 0;
}
