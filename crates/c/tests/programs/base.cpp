// The base of a team, in C++: publishes a plan, gathers the robots' poses, and exchanges bulk with each.
// Arguments: team file, state folder, the other robots.

#include "content.h"
#include <coorp.h>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr std::size_t model_bytes = 3'000'001;
constexpr std::int64_t period_ns = 10'000'000;

void check(CoorpResult result) {
    if (result != COORP_OK)
        throw std::runtime_error("result " + std::to_string(result) + ": " + coorp_last_error());
}

void hold(bool holds, const char *what) {
    if (!holds)
        throw std::runtime_error(std::string("not so: ") + what);
}

#define HOLD(condition) hold((condition), #condition)

struct Free {
    void operator()(const CoorpMessage *message) const { coorp_message_free(message); }
    void operator()(const CoorpBulkMessage *message) const { coorp_bulk_message_free(message); }
    void operator()(const CoorpTable *table) const { coorp_table_free(table); }
};

template <typename T> using Received = std::unique_ptr<const T, Free>;

// What a receive function stores, or nothing after a timeout.
template <typename T, typename Handle>
Received<T> received(CoorpResult (*receive)(Handle *, std::int64_t, const T **), Handle *from, std::int64_t timeout_ns) {
    const T *what = nullptr;
    CoorpResult result = receive(from, timeout_ns, &what);
    if (result != COORP_TIMEOUT)
        check(result);
    return Received<T>(what);
}

std::string_view content(const void *data, std::size_t length_bytes) {
    return {static_cast<const char *>(data), length_bytes};
}

class Base {
  public:
    Base(const char *team, const char *state, std::set<std::string> robots) : state_(state), robots_(robots) {
        CoorpOptions options{};
        options.state_folder = state;
        check(coorp_node_open(team, "base", &options, &node_));
        check(coorp_publisher_open(node_, "plan", period_ns, 0, &plan_));
        check(coorp_subscriber_open(node_, "pose", &poses_));
        check(coorp_gather_open(node_, "pose", period_ns, &gather_));
        check(coorp_bulk_receiver_open(node_, &receiver_));
    }
    Base(const Base &) = delete;
    Base &operator=(const Base &) = delete;
    ~Base() { coorp_node_close(node_); }

    void meet() {
        std::map<std::string, bool> heard;
        while (heard.size() < robots_.size() || !all_gathered()) {
            tell("straight on");
            while (auto pose = received(coorp_subscriber_receive, poses_, 0)) {
                HOLD(robots_.count(pose->robot) == 1);
                HOLD(content(pose->data, pose->length_bytes) == "here is " + std::string(pose->robot));
                if (pose->age_ns >= 0)
                    heard[pose->robot] = pose->age_error_ns >= 0;
            }
        }
        for (const auto &[robot, has_error] : heard)
            HOLD(has_error);
    }

    void receive_maps() {
        std::set<std::string> from;
        while (from.size() < robots_.size()) {
            tell("straight on");
            auto map = received(coorp_bulk_receiver_receive, receiver_, period_ns);
            if (!map)
                continue;
            HOLD(from.insert(map->robot).second);
            HOLD(map->length_bytes == 5000003);
            std::string file = state_ + "/map of " + map->robot;
            check(coorp_bulk_message_take_to(map.get(), file.c_str()));
            HOLD(!std::ifstream(map->file).good());
            std::ifstream read(file, std::ios::binary);
            std::vector<char> bytes{std::istreambuf_iterator<char>(read), std::istreambuf_iterator<char>()};
            HOLD(is_whole(map->name, "map", bytes.data(), bytes.size()));
        }
        HOLD(from == robots_);
    }

    void send_models() {
        std::vector<CoorpBulkDelivery *> deliveries;
        for (const auto &robot : robots_) {
            std::vector<char> model(model_bytes);
            fill(model.data(), model.size(), deliveries.size() + 1);
            std::string file = state_ + "/model of " + robot;
            std::ofstream(file, std::ios::binary).write(model.data(), static_cast<std::streamsize>(model.size()));
            char name[64];
            name_of(name, "model", model.data(), model.size());
            CoorpBulkStream *stream = nullptr;
            check(coorp_bulk_stream_open(node_, robot.c_str(), name, &stream));
            check(coorp_bulk_stream_write_file(stream, file.c_str()));
            check(coorp_bulk_stream_finish(stream, &deliveries.emplace_back()));
        }
        for (auto *delivery : deliveries) {
            CoorpResult result = COORP_TIMEOUT;
            while ((result = coorp_bulk_delivery_wait(delivery, period_ns)) == COORP_TIMEOUT)
                tell("straight on");
            check(result);
        }
    }

    // Until all robots have left.
    void end() {
        for (bool is_empty = false; !is_empty;) {
            tell("end");
            if (auto table = received(coorp_gather_receive, gather_, COORP_FOREVER))
                is_empty = table->state_count == 0 && table->states == nullptr;
        }
    }

  private:
    void tell(std::string_view plan) { check(coorp_publisher_put(plan_, plan.data(), plan.size())); }

    bool all_gathered() {
        auto table = received(coorp_gather_receive, gather_, 2 * period_ns);
        if (!table)
            return false;
        HOLD(table->listed_at_ns <= table->taken_at_ns);
        std::set<std::string> fresh;
        for (std::size_t i = 0; i < table->state_count; i++) {
            const CoorpState &state = table->states[i];
            HOLD(content(state.data, state.length_bytes) == "here is " + std::string(state.robot));
            HOLD(state.received_at_ns <= table->listed_at_ns);
            HOLD((state.age_ns < 0) == (state.created_at_ns < 0) && (state.age_ns < 0) == (state.age_error_ns < 0));
            if (state.is_fresh && state.age_ns >= 0)
                fresh.insert(state.robot);
        }
        return fresh == robots_;
    }

    std::string state_;
    std::set<std::string> robots_;
    CoorpNode *node_ = nullptr;
    CoorpPublisher *plan_ = nullptr;
    CoorpSubscriber *poses_ = nullptr;
    CoorpGather *gather_ = nullptr;
    CoorpBulkReceiver *receiver_ = nullptr;
};

} // namespace

int main(int count, char **arguments) try {
    HOLD(count > 3);
    Base base(arguments[1], arguments[2], std::set<std::string>(arguments + 3, arguments + count));
    base.meet();
    base.receive_maps();
    base.send_models();
    base.end();
    std::puts("done");
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "base.cpp: %s\n", error.what());
    return 1;
}
