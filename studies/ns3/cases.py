"""The scenarios for ns-3 and Coorp: one description, converted to ns-3 arguments and to a team file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Category:
    """EDCA parameters of one access category."""

    aifsn: int
    cw_min: int
    cw_max: int
    txop_us: int
    ampdu_bytes: int
    """Maximum A-MPDU size; 0 for none."""


@dataclass(frozen=True)
class Case:
    """A number of saturated AC_BE stations, optional periodic AC_VO flows, and the air that they share."""

    stations: int
    control: bool = False
    """Whether one more station has a periodic AC_VO flow."""
    both: bool = False
    """Whether each saturated station has a periodic AC_VO flow."""
    width_mhz: int = 40
    mcs: int = 7
    streams: int = 2
    guard_ns: int = 400
    rts: bool = False
    payload: int = 1472
    be_txop_us: int = 0
    vo_txop_us: int = 0
    be_ampdu_bytes: int = 65_535
    control_payload: int = 1000
    period_ms: int = 10
    jitter_ms: int = 2
    control_rate_mbps: int = 24
    quick: bool = False
    """Whether the case is also part of the short run."""
    note: str = ""
    """The differences from the standard settings."""

    @property
    def name(self) -> str:
        load = f"{self.stations} x BE"
        if self.control:
            load = f"VO against {self.stations} x BE"
        if self.both:
            load = f"{self.stations} x VO and BE"
        return f"{load}, {self.width_mhz} MHz" + (f", {self.note}" if self.note else "")

    @property
    def has_control(self) -> bool:
        return self.control or self.both

    @property
    def be(self) -> Category:
        return Category(3, 15, 1023, self.be_txop_us, self.be_ampdu_bytes)

    @property
    def vo(self) -> Category:
        return Category(2, 3, 7, self.vo_txop_us, 0)


def _throughput_cases() -> list[Case]:
    plain = [Case(n, width_mhz=width, quick=(width == 40 and n != 2)) for width in (20, 40) for n in (1, 2, 5, 10)]
    return [
        *plain,
        Case(5, rts=True, note="RTS/CTS", quick=True),
        Case(10, rts=True, note="RTS/CTS"),
        Case(5, mcs=4, streams=1, guard_ns=800, note="MCS 4, 1 stream, long GI"),
        Case(5, be_txop_us=2528, note="TXOP 2.528 ms"),
        Case(5, be_ampdu_bytes=16_383, note="A-MPDU 16 KiB"),
        Case(5, be_ampdu_bytes=0, note="no A-MPDU", quick=True),
        Case(5, payload=400, note="400 B"),
        Case(5, width_mhz=80, mcs=9, be_ampdu_bytes=1_048_575, note="MCS 9, A-MPDU 1 MiB"),
    ]


def _latency_cases() -> list[Case]:
    plain = [Case(n, control=True, width_mhz=width, quick=(width == 40)) for width in (20, 40) for n in (0, 1, 2, 4)]
    return [
        *plain,
        Case(1, both=True),
        Case(2, both=True, quick=True),
        Case(4, both=True, quick=True),
        Case(8, both=True),
        Case(4, both=True, rts=True, note="RTS/CTS"),
        Case(4, control=True, rts=True, note="RTS/CTS"),
        Case(2, control=True, mcs=4, streams=1, guard_ns=800, note="MCS 4, 1 stream, long GI"),
        Case(4, control=True, be_txop_us=1888, note="BE TXOP 1.888 ms"),
        Case(2, control=True, vo_txop_us=2080, note="VO TXOP 2.08 ms"),
        Case(4, control=True, be_ampdu_bytes=16_383, note="A-MPDU 16 KiB"),
        Case(4, control=True, width_mhz=80, mcs=9, be_ampdu_bytes=1_048_575, note="MCS 9, A-MPDU 1 MiB"),
    ]


CASES: list[Case] = [*_throughput_cases(), *_latency_cases()]


def ns3_arguments(case: Case) -> list[str]:
    """Returns the scenario's command line, without duration, seed and the two switches for ns-3's own behaviour."""
    arguments = {
        "stations": case.stations,
        "control": int(case.control),
        "both": int(case.both),
        "payload": case.payload,
        "controlPayload": case.control_payload,
        "period": case.period_ms,
        "jitter": case.jitter_ms,
        "width": case.width_mhz,
        "mcs": case.mcs,
        "streams": case.streams,
        "guard": case.guard_ns,
        "rts": int(case.rts),
        "controlRate": case.control_rate_mbps,
    }
    for name, category in (("be", case.be), ("vo", case.vo)):
        arguments[f"{name}Aifsn"] = category.aifsn
        arguments[f"{name}CwMin"] = category.cw_min
        arguments[f"{name}CwMax"] = category.cw_max
        arguments[f"{name}Txop"] = category.txop_us
        arguments[f"{name}Ampdu"] = category.ampdu_bytes
    return [f"--{key}={value}" for key, value in arguments.items()]


def _category_toml(name: str, category: Category) -> str:
    # ns-3 limits an A-MPDU only by bytes, within a window of 64; no aggregation is one frame.
    frames, size = (64, category.ampdu_bytes) if category.ampdu_bytes else (1, 65_535)
    return (
        f"[air.{name}]\n"
        f"aifsn = {category.aifsn}\ncw_min = {category.cw_min}\ncw_max = {category.cw_max}\n"
        f'txop = "{category.txop_us}us"\nampdu_frames = {frames}\nampdu_bytes = {size}\n\n'
    )


def team_file(case: Case, *, stock: bool = False) -> str:
    """Returns the same scenario as a Coorp team file with only flows. With `stock`, stations follow ns-3's own
    rules."""
    robots = [f"bulk-{i}" for i in range(case.stations)]
    flows = [(robot, robot, False) for robot in robots]
    if case.both:
        flows += [(f"control-{i}", robot, True) for i, robot in enumerate(robots)]
    if case.control:
        robots.append("control")
        flows.append(("control", "control", True))
    air = (
        f'[air]\nstandard = "802.11ac"\nchannel = 36\nwidth_mhz = {case.width_mhz}\n'
        f"streams = {case.streams}\nguard_interval_ns = {case.guard_ns}\nmcs = {case.mcs}\nloss = 0.0\n"
        f"rts_cts = {'true' if case.rts else 'false'}\ncontrol_rate_mbps = {case.control_rate_mbps}\n"
        + ("eifs = false\nblock_ack_request = true\n" if stock else "")
        + 'wnic = "ideal"\n\n'
    )
    parts = [
        'name = "ns3-study"\n\n[[robot]]\nname = "sink"\nleader = true\n\n',
        *(f'[[robot]]\nname = "{name}"\n\n' for name in robots),
        air,
        _category_toml("ac_be", case.be),
        _category_toml("ac_vo", case.vo),
    ]
    for name, sender, control in flows:
        parts.append(f'[[flow]]\nname = "{name}"\nfrom = "{sender}"\nto = "sink"\ntransport = "udp"\n')
        if control:
            parts.append(
                f'ac = "AC_VO"\nsize = {case.control_payload}\n'
                f'period = "{case.period_ms}ms"\njitter = "{case.jitter_ms}ms"\n\n'
            )
        else:
            parts.append(f'ac = "AC_BE"\nsize = {case.payload}\nsaturated = true\n\n')
    return "".join(parts)
