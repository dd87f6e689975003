//! The crate's backend below urnic's frontend.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use urnic_netdev::Device;
use urnic_netdev::vhost_user::{VhostUserConfig, VirtioUser};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut,
};

use super::{
    HEADER_LEN, INDIRECT, MRG_RXBUF, PROTOCOL_FEATURES, Ring, VERSION_1, frame, later, path, put,
    transmit, u16_at, wait_until,
};

/// State that urnic's frontend has set up.
#[derive(Default)]
pub(super) struct RequestCounts {
    features: u64,
    protocol: u64,
    region: VhostUserMemoryRegion,
    pub(super) memory: Option<File>,
    pub(super) rings: [Ring; 2],
    pub(super) enabled: [bool; 2],
    kicks: [Option<File>; 2],
    calls: [Option<File>; 2],
    /// Limit of memory regions, the queues' region included, if regions are accepted while running.
    slots: Option<u64>,
    /// True if the backend accepts memory that it cannot write.
    takes_read_only: bool,
    /// Regions that the backend has accepted.
    pub(super) regions: Vec<(VhostUserSingleMemoryRegion, File)>,
    pub(super) refused: usize,
    /// Number of regions announced when the last answer was sent.
    answered: usize,
}

const NOT_OFFERED: Error = Error::InvalidOperation("not offered");

impl RequestCounts {
    /// Creates a backend that accepts this number of regions while running, and read-only regions
    /// if `takes_read_only` is set.
    pub(super) fn with_slots(slots: u64, takes_read_only: bool) -> Self {
        Self { slots: Some(slots), takes_read_only, ..Self::default() }
    }

    /// Returns the offset of a user address in the memory.
    pub(super) fn at(&self, user: u64) -> u64 {
        user - self.region.user_addr + self.region.mmap_offset
    }

    /// Returns the number of regions accepted or refused, once the frontend can read the answers
    /// for all of them.
    pub(super) fn answered(&self) -> Option<usize> {
        (self.answered == self.told()).then_some(self.answered)
    }

    fn told(&self) -> usize {
        self.regions.len() + self.refused
    }
}

impl VhostUserBackendReqHandlerMut for RequestCounts {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn reset_device(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(VERSION_1 | PROTOCOL_FEATURES | MRG_RXBUF | self.slots.map_or(0, |_| INDIRECT))
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        self.features = features;
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        mut files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        assert_eq!((regions.len(), files.len()), (1, 1));
        self.region = regions[0];
        self.memory = files.pop();
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.rings[index as usize].size = u16::try_from(num).unwrap();
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let [descriptors, used, available] =
            [descriptor, used, available].map(|user| self.at(user));
        let ring = &mut self.rings[index as usize];
        *ring = Ring { descriptors, available, used, size: ring.size };
        Ok(())
    }

    fn set_vring_base(&mut self, _index: u32, base: u32) -> Result<()> {
        assert_eq!(base, 0);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        Ok(VhostUserVringState::new(index, 0))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.kicks[usize::from(index)] = fd;
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.calls[usize::from(index)] = fd;
        Ok(())
    }

    fn set_vring_err(&mut self, _index: u8, _fd: Option<File>) -> Result<()> {
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        let plain = VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::MQ;
        let slots = VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        Ok(if self.slots.is_some() { plain | slots } else { plain })
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        self.protocol = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(2)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.enabled[index as usize] = enable;
        Ok(())
    }

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Err(NOT_OFFERED)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(NOT_OFFERED)
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(NOT_OFFERED)
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        self.slots.ok_or(NOT_OFFERED)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        assert!(file.write_at(b"x", 0).is_err(), "nobody can write it");
        if !self.takes_read_only {
            self.refused += 1;
            return Err(Error::InvalidOperation("it cannot be mapped to be written"));
        }
        self.regions.push((*region, file));
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let is_it = |(known, _): &(VhostUserSingleMemoryRegion, File)| {
            (known.guest_phys_addr, known.memory_size, known.user_addr)
                == (region.guest_phys_addr, region.memory_size, region.user_addr)
        };
        let at = self.regions.iter().position(is_it).expect("one that it has");
        self.regions.remove(at);
        Ok(())
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(NOT_OFFERED)
    }
}

/// The crate's backend in a thread that answers until its frontend has closed.
pub(super) struct Answering {
    asked: Arc<Mutex<RequestCounts>>,
    pub(super) thread: JoinHandle<Error>,
    pub(super) stream: UnixStream,
}

impl Answering {
    pub(super) fn connect(path: &Path) -> Self {
        Self::connect_as(path, RequestCounts::default())
    }

    pub(super) fn connect_as(path: &Path, asked: RequestCounts) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        let asked = Arc::new(Mutex::new(asked));
        let own = stream.try_clone().unwrap();
        let [handled, answered] = [(); 2].map(|()| Arc::clone(&asked));
        let thread = thread::spawn(move || {
            let mut handler = BackendReqHandler::from_stream(own, handled);
            loop {
                match handler.handle_request() {
                    // The error was sent to the frontend; continue.
                    Ok(()) | Err(Error::InvalidOperation(_)) => {}
                    Err(error) => return error,
                }
                let mut asked = answered.lock().unwrap();
                asked.answered = asked.told();
            }
        });
        Self { asked, thread, stream }
    }

    pub(super) fn asked(&self) -> MutexGuard<'_, RequestCounts> {
        self.asked.lock().unwrap()
    }
}

/// Returns an entry of a descriptor table: address, length, flags and next entry.
pub(super) fn descriptor(file: &File, at: u64) -> (u64, u32, u16, u16) {
    let mut entry = [0; 16];
    file.read_exact_at(&mut entry, at).unwrap();
    let half = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
    let len = u32::from_le_bytes(*entry[8..].first_chunk().unwrap());
    (u64::from_le_bytes(*entry.first_chunk().unwrap()), len, half(12), half(14))
}

/// Returns the `count`-th available entry of a queue: its number, offset and length.
pub(super) fn chain(asked: &RequestCounts, queue: usize, count: u16) -> (u16, u64, u32) {
    let (memory, ring) = (asked.memory.as_ref().unwrap(), asked.rings[queue]);
    let slot = ring.available + 4 + u64::from(count % ring.size) * 2;
    let number = u16_at(memory, slot);
    let (guest, len, ..) = descriptor(memory, ring.descriptors + u64::from(number) * 16);
    (number, guest - asked.region.guest_phys_addr + asked.region.mmap_offset, len)
}

/// Returns the `count`-th buffer to the frontend, with `len` bytes written.
pub(super) fn give_back(asked: &RequestCounts, queue: usize, count: u16, number: u16, len: u32) {
    let (memory, ring) = (asked.memory.as_ref().unwrap(), asked.rings[queue]);
    let slot = ring.used + 4 + u64::from(count % ring.size) * 8;
    put(memory, slot, &[u32::from(number).to_le_bytes(), len.to_le_bytes()].concat());
    put(memory, ring.used + 2, &(count + 1).to_le_bytes());
}

#[test]
fn the_crates_backend_is_used_and_used_again() {
    let path = path("backend");
    let config = VhostUserConfig { listens: true, ..VhostUserConfig::frontend(path.clone()) };
    let mut device = VirtioUser::open(&config).unwrap();
    let mut now_ns = 0;
    for round in 0..3 {
        let backend = Answering::connect(&path);
        wait_until("the link is up", || {
            device.receive(later(&mut now_ns), 64, &mut |_| panic!("no frame yet"));
            device.link_up() && backend.asked().enabled == [true; 2]
        });
        let features = VERSION_1 | PROTOCOL_FEATURES | MRG_RXBUF;
        let asked = backend.asked();
        assert_eq!(asked.features, features, "round {round}");
        assert!(asked.kicks.iter().chain(&asked.calls).all(Option::is_some));
        drop(asked);
        for count in 0..5_u16 {
            let octets = frame(u8::try_from(count).unwrap(), 60 + usize::from(count) * 300);
            transmit(&mut device, &octets);
            let asked = backend.asked();
            let ring = asked.rings[1];
            assert_eq!(u16_at(asked.memory.as_ref().unwrap(), ring.available + 2), count + 1);
            let (number, at, len) = chain(&asked, 1, count);
            let mut came = vec![0; len as usize];
            asked.memory.as_ref().unwrap().read_exact_at(&mut came, at).unwrap();
            assert!(came[HEADER_LEN..] == octets, "round {round}");
            give_back(&asked, 1, count, number, 0);
        }
        for count in 0..5_u16 {
            let octets = frame(100 + u8::try_from(count).unwrap(), 1400);
            {
                let asked = backend.asked();
                let (number, at, len) = chain(&asked, 0, count);
                assert!(len as usize >= HEADER_LEN + octets.len());
                let mut header = [0; HEADER_LEN];
                header[10] = 1;
                let memory = asked.memory.as_ref().unwrap();
                put(memory, at, &[&header, &octets[..]].concat());
                let len = u32::try_from(HEADER_LEN + octets.len()).unwrap();
                give_back(&asked, 0, count, number, len);
            }
            let mut received = Vec::new();
            device.receive(later(&mut now_ns), 64, &mut |frame| {
                received.push(frame.gathered(&mut Vec::new()).head.to_vec())
            });
            assert!(received == [octets], "round {round}");
        }
        backend.stream.shutdown(std::net::Shutdown::Both).unwrap();
        let error = backend.thread.join().unwrap();
        assert!(matches!(error, Error::Disconnected | Error::PartialMessage), "{error:?}");
        wait_until("the link is down", || {
            device.receive(later(&mut now_ns), 64, &mut |_| ());
            !device.link_up()
        });
    }
    let counters = device.counters();
    assert_eq!((counters.frames_rx, counters.frames_tx, counters.sessions_ended), (15, 15, 3));
    assert_eq!((counters.queues_ended, counters.frames_refused), (0, 0));
}
