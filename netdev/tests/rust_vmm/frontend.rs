//! The crate's frontend with urnic's backend.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use urnic_netdev::Device;
use urnic_netdev::vhost_user::{VhostUser, VhostUserConfig};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use super::{
    HEADER_LEN, MRG_RXBUF, PROTOCOL_FEATURES, Ring, VERSION_1, frame, later, path, put, transmit,
    u16_at, wait_until,
};

const BASE: u64 = 1 << 30;
const LEN: u64 = 1 << 20;
const SIZE: u16 = 16;
const BUFFERS: u64 = 1 << 16;
const BUFFER_LEN: u32 = 2048;

/// urnic's backend, polled by a thread, since the frontend waits for answers.
struct Turned {
    device: Arc<Mutex<VhostUser>>,
    received: Arc<Mutex<Vec<Vec<u8>>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Turned {
    fn new(path: &Path) -> Self {
        let device = VhostUser::open(&VhostUserConfig::backend(path.to_owned())).unwrap();
        let device = Arc::new(Mutex::new(device));
        let received = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let is_over = Arc::<AtomicBool>::default();
        let (turned, to, over) = (Arc::clone(&device), Arc::clone(&received), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            let mut now_ns = 0;
            while !over.load(Ordering::Relaxed) {
                turned.lock().unwrap().receive(later(&mut now_ns), 64, &mut |frame| {
                    to.lock().unwrap().push(frame.gathered(&mut Vec::new()).head.to_vec());
                });
                // Without a pause the others would not get the lock.
                thread::sleep(Duration::from_micros(20));
            }
        });
        Self { device, received, is_over, thread: Some(thread) }
    }
}

impl Drop for Turned {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let joined = self.thread.take().unwrap().join();
        assert!(joined.is_ok() || thread::panicking());
    }
}

/// Memory, rings and events of a driver.
struct Driver {
    frontend: Frontend,
    memory: File,
    rings: [Ring; 2],
    events: Vec<EventFd>,
}

fn region(memory: &File) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: BASE,
        memory_size: LEN,
        userspace_addr: BASE,
        mmap_offset: 0,
        mmap_handle: memory.as_raw_fd(),
    }
}

impl Driver {
    /// Negotiates features, and hands over memory and queues; each step is acknowledged.
    fn set_up(path: &Path) -> Self {
        let mut frontend = Frontend::connect(path, 2).unwrap();
        frontend.set_owner().unwrap();
        let wanted = VERSION_1 | PROTOCOL_FEATURES | MRG_RXBUF;
        assert_eq!(frontend.get_features().unwrap() & wanted, wanted);
        frontend.set_features(wanted).unwrap();
        let offered = frontend.get_protocol_features().unwrap();
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        assert!(offered.contains(wanted), "{offered:?}");
        frontend.set_protocol_features(wanted).unwrap();
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        // The number of queues is not queried: the answer is one pair, as QEMU and DPDK count, and
        // the crate would take it for one queue.
        let memory = memfd_create(c"driver", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, LEN).unwrap();
        fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
        let memory = File::from(memory);
        frontend.set_mem_table(&[region(&memory)]).unwrap();
        let mut driver = Self { frontend, memory, rings: [Ring::default(); 2], events: Vec::new() };
        (0..2).for_each(|index| driver.set_up_queue(index));
        driver
    }

    fn set_up_queue(&mut self, index: usize) {
        let at = 16_384 * index as u64;
        let ring = Ring { descriptors: at, available: at + 4096, used: at + 8192, size: SIZE };
        self.rings[index] = ring;
        let frontend = &mut self.frontend;
        frontend.set_vring_num(index, SIZE).unwrap();
        let config = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: BASE + ring.descriptors,
            used_ring_addr: BASE + ring.used,
            avail_ring_addr: BASE + ring.available,
            log_addr: None,
        };
        frontend.set_vring_addr(index, &config).unwrap();
        frontend.set_vring_base(index, 0).unwrap();
        let [call, kick] = [(); 2].map(|()| EventFd::new(libc::EFD_NONBLOCK).unwrap());
        frontend.set_vring_call(index, &call).unwrap();
        frontend.set_vring_kick(index, &kick).unwrap();
        frontend.set_vring_enable(index, true).unwrap();
        self.events.extend([call, kick]);
    }

    /// Makes the buffer of this number available, for the device to read or to write.
    fn offer(&self, queue: usize, number: u16, len: u32, is_for_device: bool) {
        let ring = self.rings[queue];
        let mut entry = (BASE + buffer(queue, number)).to_le_bytes().to_vec();
        entry.extend(len.to_le_bytes());
        // VIRTQ_DESC_F_WRITE
        entry.extend(if is_for_device { [2, 0] } else { [0, 0] });
        entry.extend([0; 2]);
        put(&self.memory, ring.descriptors + u64::from(number) * 16, &entry);
        let index = u16_at(&self.memory, ring.available + 2);
        let slot = ring.available + 4 + u64::from(index % ring.size) * 2;
        put(&self.memory, slot, &number.to_le_bytes());
        put(&self.memory, ring.available + 2, &(index + 1).to_le_bytes());
        self.events[queue * 2 + 1].write(1).unwrap();
    }

    fn used(&self, queue: usize) -> u16 {
        u16_at(&self.memory, self.rings[queue].used + 2)
    }
}

/// Returns the offset of a buffer in the memory.
fn buffer(queue: usize, number: u16) -> u64 {
    BUFFERS + (queue as u64 * u64::from(SIZE) + u64::from(number)) * u64::from(BUFFER_LEN)
}

#[test]
fn the_crates_frontend_is_served_and_served_again() {
    let path = path("frontend");
    let backend = Turned::new(&path);
    for round in 0..3 {
        let mut driver = Driver::set_up(&path);
        wait_until("the link is up", || backend.device.lock().unwrap().link_up());
        for number in 0..5_u16 {
            let octets = frame(u8::try_from(number).unwrap(), 200 + usize::from(number) * 300);
            let at = buffer(1, number);
            put(&driver.memory, at, &[0; HEADER_LEN]);
            put(&driver.memory, at + HEADER_LEN as u64, &octets);
            let len = u32::try_from(HEADER_LEN + octets.len()).unwrap();
            driver.offer(1, number, len, false);
            wait_until("the frame is received", || {
                backend.received.lock().unwrap().pop().is_some_and(|came| came == octets)
            });
            wait_until("its buffer is given back", || driver.used(1) == number + 1);
        }
        for number in 0..5_u16 {
            driver.offer(0, number, BUFFER_LEN, true);
            let octets = frame(100 + u8::try_from(number).unwrap(), 1000);
            transmit(&mut *backend.device.lock().unwrap(), &octets);
            wait_until("a buffer is used", || driver.used(0) == number + 1);
            let mut came = vec![0; HEADER_LEN + octets.len()];
            let at = buffer(0, number);
            std::os::unix::fs::FileExt::read_exact_at(&driver.memory, &mut came, at).unwrap();
            assert!(came[HEADER_LEN..] == octets, "round {round}");
            assert_eq!(came[10..12], [1, 0], "one buffer");
        }
        // Add and remove regions while running.
        assert!(driver.frontend.get_max_mem_slots().unwrap() >= 2);
        let more = memfd_create(c"more", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&more, LEN).unwrap();
        let more = File::from(more);
        let added = VhostUserMemoryRegionInfo {
            guest_phys_addr: BASE + LEN,
            userspace_addr: BASE + LEN,
            ..region(&more)
        };
        driver.frontend.add_mem_region(&added).unwrap();
        let refused = driver.frontend.add_mem_region(&added);
        assert!(refused.is_err(), "it overlaps the one before");
        driver.frontend.remove_mem_region(&added).unwrap();
        assert!(driver.frontend.set_vring_num(0, 3).is_err(), "no power of two");
        for queue in 0..2 {
            assert_eq!(driver.frontend.get_vring_base(queue).unwrap(), 5, "round {round}");
        }
        assert!(!backend.device.lock().unwrap().link_up(), "a link without queues");
        drop(driver);
        wait_until("the end is seen", || {
            backend.device.lock().unwrap().counters().sessions_ended == round + 1
        });
    }
}
