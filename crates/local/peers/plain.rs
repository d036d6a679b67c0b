//! Plain iceoryx2, as the benchmark's transport: publish-subscribe of slices, and an event to wait on.

use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::sample_mut::SampleMut;
use iceoryx2::service::port_factory::{event, publish_subscribe};

use crate::scenarios;

struct Plain {
    node: Node<ipc::Service>,
    domain: String,
}

type Factory = publish_subscribe::PortFactory<ipc::Service, [u8], u64>;
type EventFactory = event::PortFactory<ipc::Service>;

pub fn join(domain: &str) -> Box<dyn scenarios::Transport> {
    set_log_level(LogLevel::Fatal);
    Box::new(Plain {
        node: NodeBuilder::new().create::<ipc::Service>().unwrap(),
        domain: domain.to_owned(),
    })
}

impl Plain {
    fn services(&self, channel: &str) -> (Factory, EventFactory) {
        let name = format!("{}/{channel}", self.domain);
        let payloads = self.node.service_builder(&name.as_str().try_into().unwrap());
        let payloads = payloads.publish_subscribe::<[u8]>().user_header::<u64>();
        // Allocate only the memory used here, and lose nothing.
        let payloads = payloads
            .max_publishers(4)
            .max_subscribers(4)
            .subscriber_max_buffer_size(4);
        let payloads = payloads.subscriber_max_borrowed_samples(2).enable_safe_overflow(false);
        let events = self.node.service_builder(&name.as_str().try_into().unwrap());
        let events = events.event().max_notifiers(4).max_listeners(4);
        (payloads.open_or_create().unwrap(), events.open_or_create().unwrap())
    }
}

struct Sender {
    factory: Factory,
    publisher: Publisher<ipc::Service, [u8], u64>,
    notifier: Notifier<ipc::Service>,
    prepared: Option<SampleMut<ipc::Service, [u8], u64>>,
    /// Whether to notify the reader; a reader that only spins needs no notification.
    notify: bool,
    _events: EventFactory,
}

struct Receiver {
    subscriber: Subscriber<ipc::Service, [u8], u64>,
    listener: Listener<ipc::Service>,
    _factories: (Factory, EventFactory),
}

impl Sender {
    fn notify(&self) {
        if self.notify {
            self.notifier.notify().unwrap();
        }
    }
}

impl scenarios::Transport for Plain {
    fn sender(&self, channel: &str, bytes_max: usize) -> Box<dyn scenarios::Sender> {
        let (factory, events) = self.services(channel);
        let publisher = factory
            .publisher_builder()
            .initial_max_slice_len(bytes_max)
            .create()
            .unwrap();
        let notifier = events.notifier_builder().create().unwrap();
        Box::new(Sender {
            factory,
            publisher,
            notifier,
            prepared: None,
            notify: !channel.starts_with("spin"),
            _events: events,
        })
    }

    fn receiver(&self, channel: &str) -> Box<dyn scenarios::Receiver> {
        let (factory, events) = self.services(channel);
        let subscriber = factory.subscriber_builder().create().unwrap();
        let listener = events.listener_builder().create().unwrap();
        Box::new(Receiver {
            subscriber,
            listener,
            _factories: (factory, events),
        })
    }
}

impl scenarios::Sender for Sender {
    fn wait_for_readers(&mut self, readers: usize) {
        while self.factory.dynamic_config().number_of_subscribers() < readers {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    fn send_copy(&mut self, stamp: u64, bytes: &[u8]) {
        let mut sample = self.publisher.loan_slice_uninit(bytes.len()).unwrap();
        *sample.user_header_mut() = stamp;
        sample.write_from_slice(bytes).send().unwrap();
        self.notify();
    }

    fn prepare(&mut self, bytes: usize) {
        let mut sample = self.publisher.loan_slice_uninit(bytes).unwrap();
        let payload = sample.payload_mut().iter_mut().step_by(4096);
        payload.for_each(|byte| {
            byte.write(1);
        });
        // SAFETY: Shared memory is zero from the start, and bytes have no invalid values.
        self.prepared = Some(unsafe { sample.assume_init() });
    }

    fn send_prepared(&mut self, stamp: u64) {
        let mut sample = self.prepared.take().unwrap();
        *sample.user_header_mut() = stamp;
        sample.send().unwrap();
        self.notify();
    }
}

impl scenarios::Receiver for Receiver {
    fn recv(&mut self, patient: bool, bytes: &mut dyn FnMut(&[u8])) -> u64 {
        loop {
            if let Some(sample) = self.subscriber.receive().unwrap() {
                bytes(sample.payload());
                return *sample.user_header();
            }
            if patient {
                std::hint::spin_loop();
            } else {
                self.listener.blocking_wait(|_| {}).unwrap();
            }
        }
    }
}
