// Fast DDS for Python, as much of it as studies/lib/robots.py needs: participants, and topics of byte sequences.
//
//     g++ -std=c++17 -O2 -shared -fPIC studies/fastdds/fastdds.cpp -lfastrtps -lfastcdr -o libfastdds.so
//
// The settings are those of rmw_fastrtps: reliable, the last 10, volatile, history memory that grows, no data sharing;
// shared memory is a transport. Functions return nullptr or false if Fast DDS does. Everything lives until the process
// ends.

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <fastdds/dds/domain/DomainParticipant.hpp>
#include <fastdds/dds/domain/DomainParticipantFactory.hpp>
#include <fastdds/dds/publisher/DataWriter.hpp>
#include <fastdds/dds/publisher/Publisher.hpp>
#include <fastdds/dds/subscriber/DataReader.hpp>
#include <fastdds/dds/subscriber/DataReaderListener.hpp>
#include <fastdds/dds/subscriber/SampleInfo.hpp>
#include <fastdds/dds/subscriber/Subscriber.hpp>
#include <fastdds/dds/topic/Topic.hpp>
#include <fastdds/dds/topic/TopicDataType.hpp>
#include <fastdds/dds/topic/TypeSupport.hpp>

using namespace eprosima::fastdds::dds;
using Payload = eprosima::fastrtps::rtps::SerializedPayload_t;
using Bytes = std::vector<std::uint8_t>;

namespace {

constexpr std::uint32_t BYTES_MAX = 256;
// A CDR payload's header, and a sequence's length.
constexpr std::uint32_t HEADER_BYTES = 4, LENGTH_BYTES = 4;
constexpr unsigned PARTICIPANTS_MAX = 400;
const char *const TYPE = "RobotState";

// `struct RobotState { sequence<octet> data; };`
class State : public TopicDataType {
public:
    State() {
        setName(TYPE);
        m_typeSize = HEADER_BYTES + LENGTH_BYTES + BYTES_MAX;
        m_isGetKeyDefined = false;
    }

    bool serialize(void *data, Payload *payload) override {
        const auto &bytes = *static_cast<Bytes *>(data);
        const auto length = static_cast<std::uint32_t>(bytes.size());
        const std::uint32_t size = HEADER_BYTES + LENGTH_BYTES + length;
        if (length > BYTES_MAX || payload->max_size < size)
            return false;
        // Little-endian CDR.
        const std::uint8_t header[HEADER_BYTES] = {0, 1, 0, 0};
        std::memcpy(payload->data, header, HEADER_BYTES);
        std::memcpy(payload->data + HEADER_BYTES, &length, LENGTH_BYTES);
        std::memcpy(payload->data + HEADER_BYTES + LENGTH_BYTES, bytes.data(), length);
        payload->encapsulation = CDR_LE;
        payload->length = size;
        return true;
    }

    bool deserialize(Payload *payload, void *data) override {
        std::uint32_t length = 0;
        if (payload->length < HEADER_BYTES + LENGTH_BYTES)
            return false;
        std::memcpy(&length, payload->data + HEADER_BYTES, LENGTH_BYTES);
        if (length > payload->length - HEADER_BYTES - LENGTH_BYTES)
            return false;
        const auto *begin = payload->data + HEADER_BYTES + LENGTH_BYTES;
        static_cast<Bytes *>(data)->assign(begin, begin + length);
        return true;
    }

    std::function<std::uint32_t()> getSerializedSizeProvider(void *data) override {
        return [data] {
            return HEADER_BYTES + LENGTH_BYTES + static_cast<std::uint32_t>(static_cast<Bytes *>(data)->size());
        };
    }

    void *createData() override { return new Bytes(); }
    void deleteData(void *data) override { delete static_cast<Bytes *>(data); }
    bool getKey(void *, eprosima::fastrtps::rtps::InstanceHandle_t *, bool) override { return false; }
};

using Came = void (*)(const std::uint8_t *bytes, std::uint32_t length);

class Listener : public DataReaderListener {
public:
    explicit Listener(Came came) : came_(came) {}

    void on_data_available(DataReader *reader) override {
        Bytes bytes;
        SampleInfo info;
        while (reader->take_next_sample(&bytes, &info) == ReturnCode_t::RETCODE_OK)
            if (info.valid_data)
                came_(bytes.data(), static_cast<std::uint32_t>(bytes.size()));
    }

private:
    Came came_;
};

template <typename Qos> Qos with(Qos qos) {
    qos.reliability().kind = RELIABLE_RELIABILITY_QOS;
    qos.durability().kind = VOLATILE_DURABILITY_QOS;
    qos.history().kind = KEEP_LAST_HISTORY_QOS;
    qos.history().depth = 10;
    qos.endpoint().history_memory_policy = eprosima::fastrtps::rtps::PREALLOCATED_WITH_REALLOC_MEMORY_MODE;
    qos.data_sharing().off();
    return qos;
}

Topic *named(DomainParticipant *participant, const char *name) {
    TypeSupport type(new State());
    return type.register_type(participant) == ReturnCode_t::RETCODE_OK
               ? participant->create_topic(name, TYPE, TOPIC_QOS_DEFAULT)
               : nullptr;
}

} // namespace

extern "C" {

void *fastdds_participant() {
    DomainParticipantQos qos = PARTICIPANT_QOS_DEFAULT;
    // One port each.
    qos.wire_protocol().builtin.mutation_tries = PARTICIPANTS_MAX;
    return DomainParticipantFactory::get_instance()->create_participant(0, qos);
}

void *fastdds_writer(void *participant, const char *name) {
    auto *own = static_cast<DomainParticipant *>(participant);
    Topic *topic = named(own, name);
    Publisher *publisher = topic ? own->create_publisher(PUBLISHER_QOS_DEFAULT) : nullptr;
    return publisher ? publisher->create_datawriter(topic, with(DATAWRITER_QOS_DEFAULT)) : nullptr;
}

bool fastdds_write(void *writer, const std::uint8_t *bytes, std::uint32_t length) {
    Bytes state(bytes, bytes + length);
    return static_cast<DataWriter *>(writer)->write(&state);
}

// `came` is called by a thread of Fast DDS.
void *fastdds_reader(void *participant, const char *name, Came came) {
    auto *own = static_cast<DomainParticipant *>(participant);
    Topic *topic = named(own, name);
    Subscriber *subscriber = topic ? own->create_subscriber(SUBSCRIBER_QOS_DEFAULT) : nullptr;
    return subscriber ? subscriber->create_datareader(topic, with(DATAREADER_QOS_DEFAULT), new Listener(came)) : nullptr;
}

}
