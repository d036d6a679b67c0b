// Coorp: control on time, bulk at full speed, for a team of robots on one WiFi channel.
//
// The C library: a robot's control, bulk and gather, blocking. docs/live.md has an example.
//
// Results. Every function returns a CoorpResult, except the two that return a text. After any but COORP_OK, coorp_last_error()
// says what happened, for this thread.
//
// Pointers. A text (`const char *`) ends with a NUL and is UTF-8; a path has the bytes of its file's name. Whatever is given is
// read during the call and not kept. Results are stored where the last argument points, and are NULL after a failure. NULL where
// it is not allowed is COORP_INVALID. Any other pointer has to be valid, as everywhere in C, except:
//
// Handles (CoorpNode, CoorpPublisher, CoorpSubscriber, CoorpBulkStream, CoorpBulkDelivery, CoorpBulkReceiver, CoorpGather). A
// handle is a number in the shape of a pointer, and is never used a second time. A call with a closed one is COORP_CLOSED, also if
// another thread closes it during the call; with one of another kind, or with none, it is COORP_INVALID. Closing a node closes all
// that was opened with it.
//
// Received things (CoorpMessage, CoorpBulkMessage, CoorpTable) are the library's memory, to be read by you until you free them.
//
// Threads. Every function may be called from any thread at any time.
//
// Times are in nanoseconds. A timeout of 0 does not wait; a negative one (COORP_FOREVER) waits for as long as it takes.


#ifndef COORP_H
#define COORP_H

// Written by cbindgen from crates/c/src: cargo run --manifest-path crates/c/header/Cargo.toml

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A timeout that never ends.
#define COORP_FOREVER -1

// The longest control message, bytes.
#define COORP_CONTROL_BYTES_MAX 16777216

// The longest bulk message, bytes.
#define COORP_BULK_BYTES_MAX 68719476736

// What a function returns. Every result but COORP_OK comes with a text: coorp_last_error().
typedef enum {
    // Done.
    COORP_OK = 0,
    // Nothing came within the timeout. Everything is as before.
    COORP_TIMEOUT = 1,
    // Yours to fix: an argument, the team file, the keys, the order of calls. The text says how.
    COORP_INVALID = 2,
    // The network, the machine or another robot did not do its part.
    COORP_FAILED = 3,
    // The node or the handle has been closed, perhaps by another thread, and perhaps during this call.
    COORP_CLOSED = 4,
    // There is no room now. Nothing is lost: try again later.
    COORP_FULL = 5,
    // A bug in Coorp. Please report it with the text.
    COORP_BUG = 6,
} CoorpResult;

// The delivery of a bulk message. It goes on whether or not anyone waits for it.
typedef struct CoorpBulkDelivery CoorpBulkDelivery;

// Receives bulk messages, each once.
typedef struct CoorpBulkReceiver CoorpBulkReceiver;

// A bulk message that is being written.
typedef struct CoorpBulkStream CoorpBulkStream;

// Gathers the newest state that each robot publishes on a topic.
typedef struct CoorpGather CoorpGather;

// A robot that takes part in its team until it is closed: this program is it, or a guest of its agent (`coorp up`).
typedef struct CoorpNode CoorpNode;

// Publishes control messages on one topic: predicted, ahead of bulk, over the best paths.
typedef struct CoorpPublisher CoorpPublisher;

// Receives the control messages of all robots on one topic.
typedef struct CoorpSubscriber CoorpSubscriber;

// What coorp_node_open() may be given. All zero, or NULL in its place, is the default.
typedef struct {
    // The policy; NULL: "coorp".
    const char *policy;
    // The folder for received bulk and all else that survives restarts; NULL: below `$XDG_STATE_HOME`, `~/.local/state`, or,
    // without a home, `/var/lib/coorp`. To join an agent with `--state`, the same folder.
    const char *state_folder;
    // Run without keys: anyone on the network may read, speak for robots and grant permits. Disables bulk.
    bool insecure;
} CoorpOptions;

// A control message that was received. It is yours to free with coorp_message_free(); its texts and data last until then, also
// after its node is closed.
typedef struct {
    // The robot that sent it.
    const char *robot;
    // The path that delivered it first: an interface or an address of this robot.
    const char *path;
    // Zero-based sequence number within the topic since the sender's start.
    uint64_t sequence;
    // Its age when it was taken; negative until both robots know the leader's clock.
    int64_t age_ns;
    // The error bound of the age by this robot's clock, to which the sender's adds; negative if the age is unknown.
    int64_t age_error_ns;
    // Its content.
    const void *data;
    // The length of its content.
    size_t length_bytes;
} CoorpMessage;

// A bulk message that has arrived whole. It stays on disk until it is taken, also after its node is closed and when it is freed;
// then it is received again after a restart. It is yours to free with coorp_bulk_message_free(); its texts last until then.
typedef struct {
    // The robot that sent it.
    const char *robot;
    // The sender's name for it.
    const char *name;
    // The file that has it until it is taken.
    const char *file;
    // Its length.
    uint64_t length_bytes;
} CoorpBulkMessage;

// A robot's newest state in a table.
typedef struct {
    // The robot.
    const char *robot;
    // Whether it arrived since the last table; if not, the robot missed its update.
    bool is_fresh;
    // Its age when the table was taken; negative before the clocks were compared.
    int64_t age_ns;
    // The error bound of the age; negative if the age is unknown.
    int64_t age_error_ns;
    // When it was made (T1), on this robot's clock, as the table's times; negative before the clocks were compared.
    int64_t created_at_ns;
    // When it arrived (T2).
    uint64_t received_at_ns;
    // Its content.
    const void *data;
    // The length of its content.
    size_t length_bytes;
} CoorpState;

// The newest state of every robot that has sent one, in the team file's order. It is yours to free with coorp_table_free();
// its states, texts and data last until then, also after its node is closed.
typedef struct {
    // The states; NULL if there are none.
    const CoorpState *states;
    // The number of states.
    size_t state_count;
    // When the table was made (T3), on this robot's clock.
    uint64_t listed_at_ns;
    // When the table was taken (T4), on this robot's clock.
    uint64_t taken_at_ns;
} CoorpTable;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns why the last call of this thread that did not return COORP_OK did not: what happened, and what to do if that is
// known. Never NULL; empty if there was no such call. Calls that return COORP_OK leave it as it is.
//
// Ownership: the text is the library's, and lasts until this thread's next call that does not return COORP_OK, or its end.
const char *coorp_last_error(void);

// Returns the version of the library, such as "0.1.0". The text lasts as long as the program.
const char *coorp_version(void);

// Opens a node of a robot. Where the robot's agent (`coorp up`) runs on this machine, the program becomes its guest, beside any
// number of others; otherwise it is the robot itself, and the only one. Works without any other robot. Blocks for a fraction
// of a second, or for up to three seconds if an agent was killed here. If RUST_LOG is set, the robot logs to standard error.
//
// `team_file` is the path of the team file, and `robot` a name in it. `options` may be NULL.
//
// Ownership: `*node` is yours to close with coorp_node_close(); it is NULL if this fails. Nothing given is kept.
// Threads: from any. Do not fork() while a node is open, except to exec().
// Errors: COORP_INVALID if the team file is missing or wrong, it has no such robot, keys are missing or revoked, this machine
// lacks the robot's addresses or interfaces, or its agent does not let this program join; COORP_FAILED if ports are taken.
CoorpResult coorp_node_open(const char *team_file,
                            const char *robot,
                            const CoorpOptions *options,
                            CoorpNode **node);

// Sets `*is_guest` to whether this program is a guest of the robot's agent, and not the robot itself.
//
// Threads: from any.
// Errors: COORP_INVALID for NULL; COORP_CLOSED.
CoorpResult coorp_node_is_guest(CoorpNode *node,
                                bool *is_guest);

// Leaves the team. Closes everything that was opened with the node, and ends waits on it with COORP_CLOSED. What was received
// stays until it is freed. Blocks for a fraction of a second, or until other threads that open something with it have done so.
// A program that ends without it looks to others like one that was killed.
//
// Ownership: the handle is gone, and so are those that were opened with it. NULL is allowed, and does nothing.
// Threads: from any, but not from a signal handler.
// Errors: COORP_CLOSED if it has been closed before.
CoorpResult coorp_node_close(CoorpNode *node);

// Opens a publisher of a topic. `topic` has 1 to 64 letters, digits, `-`, `_` and `.`. `period_ns` is the time between two
// messages, 10 us to 1 h, or 0 if it is to be learnt. `bound_ns` is the age at which a message is late: with it, bulk is held
// back only as much as late messages call for; 0 keeps bulk clear of every message.
//
// Ownership: `*publisher` is yours to close with coorp_publisher_close(), and is closed with the node; it is NULL if this fails.
// Threads: from any; any number of them may use the publisher.
// Errors: COORP_INVALID for a bad topic or period, or too many topics; COORP_FAILED if the robot's agent does not answer;
// COORP_CLOSED.
CoorpResult coorp_publisher_open(CoorpNode *node,
                                 const char *topic,
                                 uint64_t period_ns,
                                 uint64_t bound_ns,
                                 CoorpPublisher **publisher);

// Sends a message of up to COORP_CONTROL_BYTES_MAX bytes to all who subscribe. Does not block; if the network takes no more, or
// the robot's agent does not run, the message is dropped, because a newer one will follow.
//
// Ownership: the data is copied. NULL is allowed if the length is 0.
// Threads: from any.
// Errors: COORP_INVALID for NULL or too many bytes; COORP_CLOSED.
CoorpResult coorp_publisher_put(CoorpPublisher *publisher,
                                const void *data,
                                size_t length_bytes);

// Stops publishing.
//
// Ownership: the handle is gone. NULL is allowed, and does nothing.
// Threads: from any.
// Errors: COORP_CLOSED if it has been closed before.
CoorpResult coorp_publisher_close(CoorpPublisher *publisher);

// Subscribes to a topic, also to this robot's own messages.
//
// Ownership: `*subscriber` is yours to close with coorp_subscriber_close(), and is closed with the node; it is NULL if this
// fails.
// Threads: from any; any number of them may use the subscriber, and each message goes to one.
// Errors: COORP_INVALID for a bad topic or too many topics; COORP_FAILED if the robot's agent does not answer; COORP_CLOSED.
CoorpResult coorp_subscriber_open(CoorpNode *node,
                                  const char *topic,
                                  CoorpSubscriber **subscriber);

// Waits for a message: the newest of a robot whose newest was not received yet. `timeout_ns` is how long at most: 0 does not
// wait, and a negative one (COORP_FOREVER) waits for as long as it takes.
//
// Ownership: `*message` is yours to free with coorp_message_free(); it is NULL if this fails.
// Threads: from any. Signals do not end the wait; closing the subscriber or the node in another thread does.
// Errors: COORP_TIMEOUT; COORP_INVALID for NULL; COORP_CLOSED.
CoorpResult coorp_subscriber_receive(CoorpSubscriber *subscriber,
                                     int64_t timeout_ns,
                                     const CoorpMessage **message);

// Unsubscribes, and ends waits with COORP_CLOSED.
//
// Ownership: the handle is gone; messages that were received are not. NULL is allowed, and does nothing.
// Threads: from any.
// Errors: COORP_CLOSED if it has been closed before.
CoorpResult coorp_subscriber_close(CoorpSubscriber *subscriber);

// Frees a message that was received.
//
// Ownership: the message is gone, with its texts and data. NULL is allowed, and does nothing.
// Threads: from any.
// Errors: COORP_INVALID if it has been freed before, as long as no other one has taken its place.
CoorpResult coorp_message_free(const CoorpMessage *message);

// Begins a bulk message to a robot, or to "leader": the robot that leads at this moment, or the team file's leader if none is
// known to lead. `name` has 1 to 64 letters, digits, `-`, `_` and `.`.
//
// Ownership: `*stream` is yours to close with coorp_bulk_stream_finish(), or with coorp_bulk_stream_close(), and is closed with
// the node; it is NULL if this fails.
// Threads: from any; any number of them may use the stream, one after another.
// Errors: COORP_INVALID if there is no such robot, it is this one, the name is bad, or there are no keys; COORP_FAILED if the
// robot's agent does not answer; COORP_CLOSED.
CoorpResult coorp_bulk_stream_open(CoorpNode *node,
                                   const char *to,
                                   const char *name,
                                   CoorpBulkStream **stream);

// Appends to the message, which has at most COORP_BULK_BYTES_MAX bytes. They are kept in memory until it is delivered.
//
// Ownership: the data is copied. NULL is allowed if the length is 0.
// Threads: from any.
// Errors: COORP_INVALID for NULL, or if the message would be too long; COORP_FAILED if a guest gets no memory for it. Then
// nothing of the data is appended. COORP_CLOSED also after it was finished.
CoorpResult coorp_bulk_stream_write(CoorpBulkStream *stream,
                                    const void *data,
                                    size_t length_bytes);

// Appends the content of a regular file. Blocks while it is read.
//
// Threads: from any; what other threads write meanwhile goes in between.
// Errors: COORP_INVALID if there is no such file that can be read, or the message would be too long; then nothing is appended.
// COORP_FAILED if reading fails later: then the stream is closed, and nothing of the message is sent. COORP_CLOSED.
CoorpResult coorp_bulk_stream_write_file(CoorpBulkStream *stream,
                                         const char *file);

// Completes the message, which goes as soon as permits and the gate allow. Does not wait until it is delivered.
//
// Ownership: the stream's handle is gone, unless this fails. `*delivery` is yours to close with coorp_bulk_delivery_close(), and
// is closed with the node; it is NULL if this fails. `delivery` may be NULL if nobody waits for it.
// Threads: from any.
// Errors: COORP_FULL if 64 messages wait for that robot already: the stream stays as it is, and can be finished once one of those
// is delivered. COORP_FAILED if the robot's agent does not run, the same. COORP_CLOSED also after it was finished.
CoorpResult coorp_bulk_stream_finish(CoorpBulkStream *stream,
                                     CoorpBulkDelivery **delivery);

// Abandons a message that is not finished.
//
// Ownership: the handle is gone. NULL is allowed, and does nothing.
// Threads: from any.
// Errors: COORP_CLOSED if it has been finished or closed before.
CoorpResult coorp_bulk_stream_close(CoorpBulkStream *stream);

// Waits until the message is delivered: whole, checked, and on its receiver's disk. `timeout_ns` is how long at most: 0 only
// looks, and a negative one (COORP_FOREVER) waits for as long as it takes. May be called again, with the same answer.
//
// Threads: from any, also from several. Signals do not end the wait; closing the delivery or the node in another thread does.
// Errors: COORP_TIMEOUT if it is not known yet; COORP_FAILED if the message has failed; COORP_CLOSED.
CoorpResult coorp_bulk_delivery_wait(CoorpBulkDelivery *delivery,
                                     int64_t timeout_ns);

// Forgets a delivery, and ends waits with COORP_CLOSED. The message goes on.
//
// Ownership: the handle is gone. NULL is allowed, and does nothing.
// Threads: from any.
// Errors: COORP_CLOSED if it has been closed before.
CoorpResult coorp_bulk_delivery_close(CoorpBulkDelivery *delivery);

// Opens a receiver of the bulk messages of all robots, including those that arrived before.
//
// Ownership: `*receiver` is yours to close with coorp_bulk_receiver_close(), and is closed with the node; it is NULL if this
// fails.
// Threads: from any; any number of them may use the receiver, and each message goes to one.
// Errors: COORP_INVALID if there are no keys; COORP_FAILED if the robot's agent does not answer; COORP_CLOSED.
CoorpResult coorp_bulk_receiver_open(CoorpNode *node,
                                     CoorpBulkReceiver **receiver);

// Waits for a message that nobody has received. `timeout_ns` is how long at most: 0 does not wait, and a negative one
// (COORP_FOREVER) waits for as long as it takes.
//
// Ownership: `*message` is yours to free with coorp_bulk_message_free(); it is NULL if this fails.
// Threads: from any. Signals do not end the wait; closing the receiver or the node in another thread does.
// Errors: COORP_TIMEOUT; COORP_INVALID for NULL; COORP_CLOSED.
CoorpResult coorp_bulk_receiver_receive(CoorpBulkReceiver *receiver,
                                        int64_t timeout_ns,
                                        const CoorpBulkMessage **message);

// Receives no more, and ends waits with COORP_CLOSED.
//
// Ownership: the handle is gone; messages that were received are not. NULL is allowed, and does nothing.
// Threads: from any.
// Errors: COORP_CLOSED if it has been closed before.
CoorpResult coorp_bulk_receiver_close(CoorpBulkReceiver *receiver);

// Takes the message from disk into memory. After that it does not come back, not even after a power cut.
//
// Ownership: `*data`, of the message's length, is the library's, and lasts until the message is freed; it is NULL if this fails.
// Threads: from any.
// Errors: COORP_FAILED if it cannot be read or removed; then it is still there, and can be taken again. COORP_INVALID for
// NULL, or if it has been taken before.
CoorpResult coorp_bulk_message_take(const CoorpBulkMessage *message,
                                    const void **data);

// Moves the message to a file, which is replaced, and which has it after a power cut, too. To another disk it is copied.
//
// Threads: from any.
// Errors: COORP_FAILED if it cannot be moved; then it is still there, and can be taken again. COORP_INVALID for NULL, or if it
// has been taken before.
CoorpResult coorp_bulk_message_take_to(const CoorpBulkMessage *message,
                                       const char *file);

// Frees a message that was received. If it was not taken, it stays on disk.
//
// Ownership: the message is gone, with its texts, and its data if it was taken into memory. NULL is allowed, and does nothing.
// Threads: from any.
// Errors: COORP_INVALID if it has been freed before, as long as no other one has taken its place.
CoorpResult coorp_bulk_message_free(const CoorpBulkMessage *message);

// Gathers a topic: one table every `period_ns`, 0.5 ms to 60 s. Robots may come and go at any time.
//
// Ownership: `*gather` is yours to close with coorp_gather_close(), and is closed with the node; it is NULL if this fails.
// Threads: from any; any number of them may use it, and each table goes to one.
// Errors: COORP_INVALID for a bad topic or period, or if this robot gathers the topic already; COORP_FAILED if the robot's
// agent does not answer; COORP_CLOSED.
CoorpResult coorp_gather_open(CoorpNode *node,
                              const char *topic,
                              uint64_t period_ns,
                              CoorpGather **gather);

// Waits for the next table. `timeout_ns` is how long at most: 0 takes one that is due, and a negative one (COORP_FOREVER) waits
// for as long as it takes.
//
// Ownership: `*table` is yours to free with coorp_table_free(); it is NULL if this fails.
// Threads: from any. Signals do not end the wait; closing the gather or the node in another thread does within 100 ms.
// Errors: COORP_TIMEOUT; COORP_INVALID for NULL; COORP_CLOSED.
CoorpResult coorp_gather_receive(CoorpGather *gather,
                                 int64_t timeout_ns,
                                 const CoorpTable **table);

// Ends gathering, and waits for tables with COORP_CLOSED.
//
// Ownership: the handle is gone; tables that were received are not. NULL is allowed, and does nothing.
// Threads: from any.
// Errors: COORP_CLOSED if it has been closed before.
CoorpResult coorp_gather_close(CoorpGather *gather);

// Frees a table that was received.
//
// Ownership: the table is gone, with its states, texts and data. NULL is allowed, and does nothing.
// Threads: from any.
// Errors: COORP_INVALID if it has been freed before, as long as no other one has taken its place.
CoorpResult coorp_table_free(const CoorpTable *table);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* COORP_H */
