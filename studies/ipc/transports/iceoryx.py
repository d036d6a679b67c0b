"""Plain iceoryx2, through its Python package.

As in its examples `publish_subscribe_dynamic_data` and `event_based_communication`: a slice of bytes, loaned and
sent, and an event that wakes the receivers. Nothing is lost: a sender waits for room.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ipc.place import Place, Receiver, Sender, Transport

BUFFERED = 2
"""Number of messages that may wait for a receiver, and that a receiver may hold."""


class Services:
    """The node and its two services, under a prefix and in a folder of this group."""

    def __init__(self, place: Place) -> None:
        iox: Any = importlib.import_module("iceoryx2")
        iox.set_log_level(iox.LogLevel.Fatal)
        config = iox.config.default()
        config.global_cfg.prefix = iox.FileName.new(f"{place.name}-")
        config.global_cfg.root_path = iox.Path.new(f"{place.folder}/iceoryx2")
        self.iox = iox
        self.node = iox.NodeBuilder.new().config(config).create(iox.ServiceType.Ipc)
        name = iox.ServiceName.new("frame")
        payloads = self.node.service_builder(name).publish_subscribe(iox.Slice[ctypes.c_uint8])
        payloads = payloads.max_publishers(place.senders).max_subscribers(place.receivers)
        payloads = payloads.subscriber_max_buffer_size(BUFFERED).subscriber_max_borrowed_samples(BUFFERED)
        self.payloads = payloads.history_size(0).enable_safe_overflow(False).open_or_create()
        events = self.node.service_builder(name).event()
        self.events = events.max_notifiers(place.senders).max_listeners(place.receivers).open_or_create()


class IceoryxSender(Sender):
    """Copies into a loaned sample, or fills it."""

    def __init__(self, place: Place) -> None:
        self._services = Services(place)
        builder = self._services.payloads.publisher_builder().initial_max_slice_len(place.bytes_max)
        self._publisher = builder.create()
        self._notifier = self._services.events.notifier_builder().create()
        self._sample: Any = None

    def load(self, array: np.ndarray) -> None:
        sample = self._publisher.loan_slice_uninit(len(array))
        np.frombuffer(sample.payload().as_memory_view(), np.uint8)[:] = array
        self._sample = sample.assume_init()

    def send_loaded(self) -> None:
        self._sample.send()
        self._sample = None
        self._notifier.notify()

    def send(self, array: np.ndarray) -> None:
        self.load(array)
        self.send_loaded()


class IceoryxReceiver(Receiver):
    """Sleeps until notified, and views the sample."""

    def __init__(self, place: Place) -> None:
        self._services = Services(place)
        self._listener = self._services.events.listener_builder().create()
        self._subscriber = self._services.payloads.subscriber_builder().create()

    def run(self, take: Callable[[np.ndarray], bool]) -> None:
        while True:
            sample = self._subscriber.receive()
            if sample is None:
                self._listener.blocking_wait()
                continue
            more = take(np.frombuffer(sample.payload().as_memory_view(), np.uint8))
            sample.delete()
            if not more:
                return


class Iceoryx(Transport):
    name = "iceoryx2, plain"
    packages = ("iceoryx2==0.10.0",)
    module = "iceoryx2"
    loans = True

    def sender(self, place: Place) -> Sender:
        return IceoryxSender(place)

    def receiver(self, place: Place) -> Receiver:
        return IceoryxReceiver(place)


TRANSPORT = Iceoryx()
