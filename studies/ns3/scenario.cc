// One WiFi channel in ns-3, equivalent to the `ideal` profile of Coorp's air.
//
// A number of saturated AC_BE stations send UDP to one sink. Periodic AC_VO flows are sent by one more station, or by
// each of these stations.
// Settings that differ from ns-3's defaults, and why:
//  - Ad hoc, so there are no beacons and no association; the neighbour caches are filled beforehand, so no ARP.
//  - All stations hear each other at the same power; only overlapping frames are lost. In unmodified ns-3 (`--stock`)
//    that is because the SNR is 0 dB, below the 4 dB that its preamble detection needs. A bystander then never notices
//    a frame, and does not wait the EIFS that the standard requires. Otherwise receivers synchronise to one frame of a
//    collision and find all of its MPDUs broken, and the EIFS follows.
//  - No queue disc in front (a saturated source keeps the MAC queue filled by itself), no drop by age.
//  - Block ack agreements are set up one station at a time, before the load starts.
// The result is one line of JSON on stdout.

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/mobility-module.h"
#include "ns3/neighbor-cache-helper.h"
#include "ns3/network-module.h"
#include "ns3/traffic-control-helper.h"
#include "ns3/wifi-module.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

using namespace ns3;

namespace
{

/// No losses from noise; `Collisions` handles collisions.
class NoNoise : public ErrorRateModel
{
  public:
    static TypeId GetTypeId()
    {
        static TypeId id = TypeId("CoorpNoNoise").SetParent<ErrorRateModel>().AddConstructor<NoNoise>();
        return id;
    }

  private:
    double DoGetChunkSuccessRate(WifiMode, const WifiTxVector&, double, uint64_t, uint8_t, WifiPpduField, uint16_t)
        const override
    {
        return 1.0;
    }
};

/// Breaks every MPDU of transmissions that overlap in time. All receivers share one object.
class Collisions : public ErrorModel
{
  public:
    void TransmissionBegins(std::string station, WifiConstPsduMap psdus, WifiTxVector vector, double)
    {
        auto now = Simulator::Now();
        auto psdu = psdus.begin()->second;
        Mark(psdu, false);
        for (auto& [other, transmission] : m_onAir)
        {
            if (other != station && transmission.end > now)
            {
                Mark(transmission.psdu, true);
                Mark(psdu, true);
            }
        }
        m_onAir[station] = {now + WifiPhy::CalculateTxDuration(psdu, vector, WIFI_PHY_BAND_5GHZ), psdu};
    }

  private:
    struct Transmission
    {
        Time end;
        Ptr<const WifiPsdu> psdu;
    };

    void Mark(Ptr<const WifiPsdu> psdu, bool broken)
    {
        for (const auto& mpdu : *PeekPointer(psdu))
        {
            auto uid = mpdu->GetPacket()->GetUid();
            broken ? (void)m_broken.insert(uid) : (void)m_broken.erase(uid);
        }
    }

    bool DoCorrupt(Ptr<Packet> packet) override
    {
        return m_broken.count(packet->GetUid()) > 0;
    }

    void DoReset() override
    {
        m_broken.clear();
    }

    std::map<std::string, Transmission> m_onAir;
    std::unordered_set<uint64_t> m_broken;
};

/// The limits of one access category, as in a Coorp team file.
struct Category
{
    uint32_t aifsn;
    uint32_t cwMin;
    uint32_t cwMax;
    double txopUs;
    uint32_t ampduBytes; ///< 0: no aggregation.
};

struct Settings
{
    uint32_t stations = 1;
    bool control = false;
    bool both = false;
    uint32_t payload = 1472;
    uint32_t controlPayload = 1000;
    double periodMs = 10.0;
    double jitterMs = 2.0;
    uint32_t width = 20;
    uint32_t mcs = 7;
    uint32_t streams = 1;
    uint32_t guardNs = 800;
    bool rts = false;
    bool stock = false;
    bool explicitBar = false;
    uint32_t controlRateMbps = 24;
    uint32_t window = 64;
    uint32_t retries = 7;
    Category be{3, 15, 1023, 0.0, 65535};
    Category vo{2, 3, 7, 0.0, 0};
    double warmUpS = 1.0;
    double durationS = 10.0;
    uint32_t seed = 1;
    bool trace = false;
};

constexpr uint16_t BULK_PORT = 9;
constexpr uint16_t CONTROL_PORT = 10;
/// Packets that a saturated source keeps in the MAC queue: more than three block ack windows, under the queue's 500.
constexpr uint32_t QUEUE_TARGET = 200;
/// Agreements are set up before this instant; then the load starts.
constexpr double LOAD_START_S = 1.0;
/// Packets sent at the end may still arrive within this time.
constexpr double GRACE_S = 0.5;

/// Keeps a station's AC_BE queue filled.
class SaturatedSource
{
  public:
    SaturatedSource(Ptr<Socket> socket, Ptr<WifiMacQueue> queue, uint32_t payload)
        : m_socket(socket),
          m_queue(queue),
          m_payload(payload)
    {
    }

    void SendOne()
    {
        m_socket->Send(Create<Packet>(m_payload));
    }

    void Start()
    {
        m_queue->TraceConnectWithoutContext("Dequeue", MakeCallback(&SaturatedSource::Dequeued, this));
        Refill();
    }

  private:
    /// Frames leave the queue one by one within a single MAC call; refill once, after it.
    void Dequeued(Ptr<const WifiMpdu>)
    {
        if (!m_refill.IsPending())
        {
            m_refill = Simulator::ScheduleNow(&SaturatedSource::Refill, this);
        }
    }

    void Refill()
    {
        for (uint32_t n = m_queue->GetNPackets(); n < QUEUE_TARGET; ++n)
        {
            SendOne();
        }
    }

    Ptr<Socket> m_socket;
    Ptr<WifiMacQueue> m_queue;
    uint32_t m_payload;
    EventId m_refill;
};

/// Sends a message every period, each with its own normal jitter as in Coorp, and records when each was sent.
class PeriodicSource
{
  public:
    PeriodicSource(Ptr<Socket> socket, const Settings& settings)
        : m_socket(socket),
          m_settings(settings),
          m_jitter(CreateObject<NormalRandomVariable>())
    {
        m_jitter->SetAttribute("Variance", DoubleValue(settings.jitterMs * settings.jitterMs));
    }

    void SendOne()
    {
        auto packet = Create<Packet>(m_settings.controlPayload - 4);
        Number number(static_cast<uint32_t>(sentAt.size()));
        packet->AddAtEnd(Create<Packet>(number.bytes, sizeof(number.bytes)));
        sentAt.push_back(Simulator::Now());
        m_socket->Send(packet);
    }

    void Period()
    {
        // One period of margin, so that no instant lies in the past.
        auto in = m_settings.periodMs + m_jitter->GetValue();
        Simulator::Schedule(NanoSeconds(1e6 * std::max(in, 0.0)), &PeriodicSource::SendOne, this);
        Simulator::Schedule(NanoSeconds(1e6 * m_settings.periodMs), &PeriodicSource::Period, this);
    }

    std::vector<Time> sentAt;

  private:
    struct Number
    {
        explicit Number(uint32_t number)
        {
            for (auto& byte : bytes)
            {
                byte = number & 0xff;
                number >>= 8;
            }
        }

        uint8_t bytes[4];
    };

    Ptr<Socket> m_socket;
    const Settings& m_settings;
    Ptr<NormalRandomVariable> m_jitter;
};

/// Counts arrivals within the measured time.
class Sink
{
  public:
    Sink(uint32_t stations, Time from, Time to)
        : bytes(stations, 0),
          m_from(from),
          m_to(to)
    {
    }

    void Bulk(Ptr<Socket> socket)
    {
        Address from;
        while (auto packet = socket->RecvFrom(from))
        {
            auto now = Simulator::Now();
            if (now >= m_from && now < m_to)
            {
                // Stations' addresses follow the sink's, 10.0.0.1.
                auto host = InetSocketAddress::ConvertFrom(from).GetIpv4().Get() & 0xffff;
                bytes.at(host - 2) += packet->GetSize();
            }
        }
    }

    void Control(PeriodicSource* source, Ptr<Socket> socket)
    {
        while (auto packet = socket->Recv())
        {
            uint8_t tail[4];
            packet->CreateFragment(packet->GetSize() - 4, 4)->CopyData(tail, 4);
            uint32_t number = tail[0] | tail[1] << 8 | tail[2] << 16 | uint32_t(tail[3]) << 24;
            auto sent = source->sentAt.at(number);
            if (sent >= m_from && sent < m_to)
            {
                latencyMs.push_back((Simulator::Now() - sent).ToDouble(Time::MS));
            }
        }
    }

    uint64_t Sent(const std::vector<std::unique_ptr<PeriodicSource>>& sources) const
    {
        uint64_t sent = 0;
        for (const auto& source : sources)
        {
            sent += std::count_if(source->sentAt.begin(), source->sentAt.end(), [this](Time t) {
                return t >= m_from && t < m_to;
            });
        }
        return sent;
    }

    std::vector<uint64_t> bytes;
    std::vector<double> latencyMs;

  private:
    Time m_from;
    Time m_to;
};

/// Wall-clock time and events, only for the measured time.
struct Meter
{
    std::chrono::steady_clock::time_point start;
    uint64_t startEvents = 0;
    double wallS = 0.0;
    uint64_t events = 0;

    void Start()
    {
        start = std::chrono::steady_clock::now();
        startEvents = Simulator::GetEventCount();
    }

    void Stop()
    {
        wallS = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        events = Simulator::GetEventCount() - startEvents;
    }
};

double
Quantile(const std::vector<double>& sorted, double q)
{
    auto rank = static_cast<size_t>(std::ceil(q * sorted.size()));
    return sorted.at(std::max<size_t>(rank, 1) - 1);
}

void
AddCategoryOptions(CommandLine& cmd, const std::string& name, Category& category)
{
    cmd.AddValue(name + "Aifsn", "AIFSN of this category", category.aifsn);
    cmd.AddValue(name + "CwMin", "CWmin of this category", category.cwMin);
    cmd.AddValue(name + "CwMax", "CWmax of this category", category.cwMax);
    cmd.AddValue(name + "Txop", "TXOP limit of this category, us (a multiple of 32)", category.txopUs);
    cmd.AddValue(name + "Ampdu", "largest A-MPDU of this category, bytes; 0: none", category.ampduBytes);
}

Settings
ReadSettings(int argc, char* argv[])
{
    Settings s;
    CommandLine cmd;
    cmd.AddValue("stations", "saturated AC_BE stations", s.stations);
    cmd.AddValue("control", "one more station with a periodic AC_VO flow", s.control);
    cmd.AddValue("both", "every saturated station has a periodic AC_VO flow too", s.both);
    cmd.AddValue("payload", "UDP payload of a bulk packet, bytes", s.payload);
    cmd.AddValue("controlPayload", "UDP payload of a control message, bytes", s.controlPayload);
    cmd.AddValue("period", "period of the control flow, ms", s.periodMs);
    cmd.AddValue("jitter", "standard deviation of a control message's instant, ms", s.jitterMs);
    cmd.AddValue("width", "channel width, MHz", s.width);
    cmd.AddValue("mcs", "VHT MCS", s.mcs);
    cmd.AddValue("streams", "spatial streams", s.streams);
    cmd.AddValue("guard", "guard interval, ns", s.guardNs);
    cmd.AddValue("rts", "RTS/CTS before every data frame", s.rts);
    cmd.AddValue("stock", "collisions by SNR and preamble detection, as ns-3 comes", s.stock);
    cmd.AddValue("explicitBar", "ask with a BlockAckReq after a missed block ack", s.explicitBar);
    cmd.AddValue("controlRate", "non-HT rate of RTS, CTS and acknowledgements, Mbit/s", s.controlRateMbps);
    cmd.AddValue("window", "block ack window, frames", s.window);
    cmd.AddValue("retries", "retry limit", s.retries);
    cmd.AddValue("warmUp", "loaded time before the measurement, s", s.warmUpS);
    cmd.AddValue("duration", "measured time, s", s.durationS);
    cmd.AddValue("seed", "seed", s.seed);
    cmd.AddValue("trace", "print every transmission to stderr", s.trace);
    AddCategoryOptions(cmd, "be", s.be);
    AddCategoryOptions(cmd, "vo", s.vo);
    cmd.Parse(argc, argv);
    return s;
}

void
SetDefaults(const Settings& s)
{
    RngSeedManager::SetSeed(s.seed);
    Config::SetDefault("ns3::WifiMacQueue::MaxDelay", TimeValue(Seconds(1000)));
    Config::SetDefault("ns3::HtConfiguration::ShortGuardIntervalSupported", BooleanValue(s.guardNs == 400));
    Config::SetDefault("ns3::WifiRemoteStationManager::RtsCtsThreshold",
                       UintegerValue(s.rts ? 0 : 4692480));
    Config::SetDefault("ns3::WifiMac::BE_MaxAmpduSize", UintegerValue(s.be.ampduBytes));
    Config::SetDefault("ns3::WifiMac::VO_MaxAmpduSize", UintegerValue(s.vo.ampduBytes));
    Config::SetDefault("ns3::WifiMac::MpduBufferSize", UintegerValue(s.window));
    Config::SetDefault("ns3::WifiMac::FrameRetryLimit", UintegerValue(s.retries));
    Config::SetDefault("ns3::QosTxop::UseExplicitBarAfterMissedBlockAck", BooleanValue(s.explicitBar));
}

NetDeviceContainer
InstallWifi(const Settings& s, const NodeContainer& nodes)
{
    auto channel = CreateObject<YansWifiChannel>();
    channel->SetPropagationDelayModel(CreateObject<ConstantSpeedPropagationDelayModel>());
    auto loss = CreateObject<MatrixPropagationLossModel>();
    loss->SetDefaultLoss(46.0);
    channel->SetPropagationLossModel(loss);

    auto number = s.width == 80 ? 42 : s.width == 40 ? 38 : 36;
    YansWifiPhyHelper phy;
    phy.SetChannel(channel);
    phy.Set("ChannelSettings",
            StringValue("{" + std::to_string(number) + ", " + std::to_string(s.width) + ", BAND_5GHZ, 0}"));
    phy.Set("Antennas", UintegerValue(s.streams));
    phy.Set("MaxSupportedTxSpatialStreams", UintegerValue(s.streams));
    phy.Set("MaxSupportedRxSpatialStreams", UintegerValue(s.streams));

    if (!s.stock)
    {
        phy.DisablePreambleDetectionModel();
        phy.SetErrorRateModel("CoorpNoNoise");
    }

    WifiHelper wifi;
    wifi.SetStandard(WIFI_STANDARD_80211ac);
    auto controlMode = "OfdmRate" + std::to_string(s.controlRateMbps) + "Mbps";
    wifi.SetRemoteStationManager("ns3::ConstantRateWifiManager",
                                 "DataMode",
                                 StringValue("VhtMcs" + std::to_string(s.mcs)),
                                 "ControlMode",
                                 StringValue(controlMode));
    WifiMacHelper mac;
    mac.SetType("ns3::AdhocWifiMac");
    auto devices = wifi.Install(phy, mac, nodes);
    int64_t stream = 1;
    WifiHelper::AssignStreams(devices, stream);
    for (uint32_t i = 0; i < devices.GetN(); ++i)
    {
        auto device = DynamicCast<WifiNetDevice>(devices.Get(i));
        // Responses use the highest basic rate not faster than the frame being answered.
        device->GetRemoteStationManager()->AddBasicMode(WifiMode(controlMode));
        for (const auto& [ac, category] : {std::pair{AC_BE, s.be}, std::pair{AC_VO, s.vo}})
        {
            auto txop = device->GetMac()->GetQosTxop(ac);
            txop->SetAifsn(category.aifsn);
            txop->SetMinCw(category.cwMin);
            txop->SetMaxCw(category.cwMax);
            txop->SetTxopLimit(MicroSeconds(category.txopUs));
        }
    }
    return devices;
}

void
LoseCollisions(const Settings& s, const NetDeviceContainer& devices)
{
    if (s.control)
    {
        // ns-3 counts an EIFS from the end of the frame to which the receiver had synchronised, even if another one
        // continues; the standard counts it from the idle medium. Control frames are shorter, so they get 1 dB less,
        // and receivers synchronise to the other frame.
        auto phy = DynamicCast<WifiNetDevice>(devices.Get(devices.GetN() - 1))->GetPhy();
        phy->SetTxPowerStart(phy->GetTxPowerStart() - dB_u{1.0});
        phy->SetTxPowerEnd(phy->GetTxPowerEnd() - dB_u{1.0});
    }
    auto collisions = CreateObject<Collisions>();
    for (uint32_t i = 0; i < devices.GetN(); ++i)
    {
        auto phy = DynamicCast<WifiNetDevice>(devices.Get(i))->GetPhy();
        phy->SetPostReceptionErrorModel(collisions);
        phy->TraceConnect("PhyTxPsduBegin",
                          std::to_string(i),
                          MakeCallback(&Collisions::TransmissionBegins, collisions));
    }
}

/// The sink in the middle, the stations on a circle of 1 m around it.
void
Place(const NodeContainer& nodes)
{
    auto positions = CreateObject<ListPositionAllocator>();
    positions->Add(Vector(0.0, 0.0, 0.0));
    for (uint32_t i = 1; i < nodes.GetN(); ++i)
    {
        auto angle = 2.0 * M_PI * i / nodes.GetN();
        positions->Add(Vector(std::cos(angle), std::sin(angle), 0.0));
    }
    MobilityHelper mobility;
    mobility.SetPositionAllocator(positions);
    mobility.SetMobilityModel("ns3::ConstantPositionMobilityModel");
    mobility.Install(nodes);
}

Ptr<Socket>
OpenSender(Ptr<Node> node, Ipv4Address to, uint16_t port, uint8_t priority)
{
    auto socket = Socket::CreateSocket(node, UdpSocketFactory::GetTypeId());
    socket->Connect(InetSocketAddress(to, port));
    // The user priority is read from the top three bits. Set after the connect, which resets the TOS.
    socket->SetIpTos(priority << 5);
    return socket;
}

Ptr<Socket>
OpenReceiver(Ptr<Node> node, uint16_t port)
{
    auto socket = Socket::CreateSocket(node, UdpSocketFactory::GetTypeId());
    socket->SetAttribute("RcvBufSize", UintegerValue(1u << 30));
    socket->Bind(InetSocketAddress(Ipv4Address::GetAny(), port));
    return socket;
}

void
TraceTransmission(std::string station, WifiConstPsduMap psdus, WifiTxVector vector, double)
{
    const auto& psdu = psdus.begin()->second;
    const auto& header = psdu->GetHeader(0);
    std::cerr << Simulator::Now().GetNanoSeconds() << " " << station << " " << header.GetTypeString()
              << " tid=" << (header.IsQosData() ? int(header.GetQosTid()) : -1) << " mpdus=" << psdu->GetNMpdus() << " bytes=" << psdu->GetSize() << " ns="
              << WifiPhy::CalculateTxDuration(psdu, vector, WIFI_PHY_BAND_5GHZ).GetNanoSeconds() << " "
              << vector.GetMode() << "\n";
}

void
TraceAll(const NetDeviceContainer& devices)
{
    for (uint32_t i = 0; i < devices.GetN(); ++i)
    {
        auto phy = DynamicCast<WifiNetDevice>(devices.Get(i))->GetPhy();
        phy->TraceConnect("PhyTxPsduBegin", std::to_string(i), MakeCallback(&TraceTransmission));
    }
}

void
PrintResult(const Settings& s,
            const Sink& sink,
            const std::vector<std::unique_ptr<PeriodicSource>>& control,
            const Meter& meter)
{
    std::cout << "{\"mbps\":[";
    double total = 0.0;
    for (size_t i = 0; i < s.stations; ++i)
    {
        auto mbps = sink.bytes[i] * 8.0 / s.durationS / 1e6;
        total += mbps;
        std::cout << (i ? "," : "") << mbps;
    }
    std::cout << "],\"total_mbps\":" << total;
    if (!control.empty())
    {
        auto sorted = sink.latencyMs;
        std::sort(sorted.begin(), sorted.end());
        double sum = 0.0;
        std::cout << ",\"sent\":" << sink.Sent(control) << ",\"delivered\":" << sorted.size() << ",\"latency_ms\":[";
        for (size_t i = 0; i < sorted.size(); ++i)
        {
            sum += sorted[i];
            std::cout << (i ? "," : "") << sorted[i];
        }
        std::cout << "]";
        if (!sorted.empty())
        {
            std::cout << ",\"quantiles_ms\":{\"p10\":" << Quantile(sorted, 0.1) << ",\"p50\":" << Quantile(sorted, 0.5)
                      << ",\"p90\":" << Quantile(sorted, 0.9) << ",\"p99\":" << Quantile(sorted, 0.99)
                      << ",\"mean\":" << sum / sorted.size() << "}";
        }
    }
    std::cout << ",\"virtual_s\":" << s.durationS << ",\"wall_s\":" << meter.wallS << ",\"events\":" << meter.events
              << "}" << std::endl;
}

NS_OBJECT_ENSURE_REGISTERED(NoNoise);

} // namespace

int
main(int argc, char* argv[])
{
    auto s = ReadSettings(argc, argv);
    SetDefaults(s);

    NodeContainer nodes(1 + s.stations + (s.control ? 1 : 0));
    Place(nodes);
    auto devices = InstallWifi(s, nodes);
    InternetStackHelper().Install(nodes);
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.0.0");
    auto interfaces = addresses.Assign(devices);
    TrafficControlHelper().Uninstall(devices);
    NeighborCacheHelper().PopulateNeighborCache(devices);
    if (!s.stock)
    {
        LoseCollisions(s, devices);
    }
    if (s.trace)
    {
        TraceAll(devices);
    }

    auto from = Seconds(LOAD_START_S + s.warmUpS);
    auto to = from + Seconds(s.durationS);
    Sink sink(s.stations, from, to);
    auto bulkSocket = OpenReceiver(nodes.Get(0), BULK_PORT);
    bulkSocket->SetRecvCallback(MakeCallback(&Sink::Bulk, &sink));

    std::vector<std::unique_ptr<SaturatedSource>> bulk;
    for (uint32_t i = 0; i < s.stations; ++i)
    {
        auto mac = DynamicCast<WifiNetDevice>(devices.Get(i + 1))->GetMac();
        auto socket = OpenSender(nodes.Get(i + 1), interfaces.GetAddress(0), BULK_PORT, 0);
        bulk.push_back(std::make_unique<SaturatedSource>(socket, mac->GetTxopQueue(AC_BE), s.payload));
        Simulator::Schedule(MilliSeconds(10 * (i + 1)), &SaturatedSource::SendOne, bulk[i].get());
        Simulator::Schedule(Seconds(LOAD_START_S), &SaturatedSource::Start, bulk[i].get());
    }
    std::vector<std::unique_ptr<PeriodicSource>> control;
    for (uint32_t node = s.both ? 1 : 1 + s.stations; node < nodes.GetN(); ++node)
    {
        auto port = CONTROL_PORT + node;
        auto socket = OpenSender(nodes.Get(node), interfaces.GetAddress(0), port, 6);
        auto source = control.emplace_back(std::make_unique<PeriodicSource>(socket, s)).get();
        auto receiver = OpenReceiver(nodes.Get(0), port);
        receiver->SetRecvCallback(MakeCallback(&Sink::Control, &sink).Bind(source));
        Simulator::Schedule(MilliSeconds(5), &PeriodicSource::SendOne, source);
        Simulator::Schedule(Seconds(LOAD_START_S), &PeriodicSource::Period, source);
    }

    Meter meter;
    Simulator::Schedule(from, &Meter::Start, &meter);
    Simulator::Schedule(to, &Meter::Stop, &meter);
    Simulator::Stop(to + Seconds(GRACE_S));
    Simulator::Run();
    PrintResult(s, sink, control, meter);
    Simulator::Destroy();
    return 0;
}
