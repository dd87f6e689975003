//! A full server: sessions of an address with many of them are evicted for an address with fewer,
//! with the reason.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use urnic::{
    Access, ConnectOptions, Connection, Cq, Error, Mr, Qp, QpConfig, RecvWr, RemoteBuffer, SendWr,
    Stag, TaggedOffset, WcOpcode, WcStatus, WrId, monotonic_now,
};

use super::limits;
use super::scene::{By, Clients, scene};
use crate::client::Happened;
use crate::protocol::{CONTROL_LEN_MAX, Control, Hello, Session, Welcome, refusal_from};
use crate::server::Limits;
use crate::server::peers::EVICTIONS_MAX;
use crate::server::places::{Places, Taken};
use crate::server::resources::SESSION_BYTES;
use crate::transfer::Folder;

const TIMEOUT: Duration = Duration::from_secs(600);

/// An idle session from an address of its own.
struct Held {
    connection: Connection,
    _qp: Qp,
    cq: Cq,
    memory: Mr,
}

/// Opens a session from 127.0.0.`from` with a region of `len` bytes; returns the reason if it is
/// refused.
fn open(clients: &Clients<'_>, from: u8, len: u64) -> Result<Held, String> {
    open_session(clients, from, Session::Memory, len)
}

/// Opens any session with memory that can be read.
fn open_session(
    clients: &Clients<'_>,
    from: u8,
    session: Session,
    len: u64,
) -> Result<Held, String> {
    let cq = clients.host.rnic.create_cq(8).unwrap();
    let depths = QpConfig { send_depth: 4, recv_depth: 4, ..QpConfig::new(&cq) };
    let qp = clients.host.pd.create_qp(depths).unwrap();
    let memory = clients.host.pd.reg_mr(CONTROL_LEN_MAX, Access::LOCAL_WRITE).unwrap();
    qp.post_recv(RecvWr::new(WrId(1), [memory.sge(0..CONTROL_LEN_MAX)])).unwrap();
    let hello = Hello { session, len, depth: 0 };
    let local = SocketAddr::from((IpAddr::V4(Ipv4Addr::new(127, 0, 0, from)), 0));
    let options = clients.host.options.connect_options(hello.emit());
    let options = ConnectOptions { local: Some(local), ..options };
    let connecting = clients.host.endpoint.connect(clients.remote, &qp, &options).unwrap();
    match connecting.wait(TIMEOUT) {
        Ok(connection) => {
            // RFC 5044 §7.1.2 (4): the server may say nothing before this end's first FPDU.
            let welcome = Welcome::parse(&connection.terms().private_data).unwrap();
            qp.post_send(SendWr::read(WrId(2), welcome.region, memory.sge(0..1))).unwrap();
            let read = clients.host.endpoint.wait(&cq, TIMEOUT).unwrap().unwrap();
            assert_eq!((read.wr_id, read.status), (WrId(2), WcStatus::Success));
            Ok(Held { connection, _qp: qp, cq, memory })
        }
        Err(Error::Rejected(why)) => Err(refusal_from(&why.private_data).unwrap()),
        Err(error) => panic!("{error}"),
    }
}

impl Held {
    /// Last message of the server, if it has ended the session.
    fn last_word(&self) -> Option<String> {
        while let Some(wc) = self.cq.poll() {
            if wc.status != WcStatus::Success {
                return Some(String::new());
            }
            if wc.opcode == WcOpcode::Recv {
                let mut octets = vec![0; wc.byte_len as usize];
                self.memory.copy_out(0, &mut octets);
                let Control::Failed(why) = Control::parse(&octets).unwrap() else { panic!() };
                return Some(why);
            }
        }
        None
    }
}

/// Waits until one of the sessions has ended, and removes it from the list.
fn ended(clients: &Clients<'_>, held: &mut Vec<(u8, Held)>) -> (u8, String) {
    let deadline = monotonic_now() + TIMEOUT;
    loop {
        let found = held
            .iter()
            .enumerate()
            .find_map(|(index, (_, one))| one.last_word().map(|why| (index, why)));
        if let Some((index, why)) = found {
            let (from, one) = held.swap_remove(index);
            one.connection.disconnect();
            return (from, why);
        }
        assert!(monotonic_now() < deadline, "none gives way");
        clients.host.endpoint.turn(Duration::from_millis(1)).unwrap();
    }
}

fn refused(clients: &Clients<'_>, from: u8, len: u64, part: &str) {
    let why = open(clients, from, len).err().unwrap_or_default();
    assert!(why.contains(part), "{from}: {why:?}");
}

#[test]
fn two_addresses_do_not_keep_all_places_from_others() {
    two_addresses_keep_no_places(&Session::Memory, limits());
}

/// The thread of a file does not keep the place of an evicted session.
#[test]
fn two_addresses_do_not_keep_all_places_by_files() {
    let served = tempfile::tempdir().unwrap();
    std::fs::write(served.path().join("file"), [7; 64]).unwrap();
    let folder = Some(Folder::open(served.path()).unwrap());
    let session = Session::Get { name: "file".to_owned() };
    two_addresses_keep_no_places(&session, Limits { folder, ..limits() });
}

fn two_addresses_keep_no_places(session: &Session, limits: Limits) {
    let places = Places { peers_max: 6, peers_per_source_max: 3, ..limits.places };
    scene(
        By::KernelTcp,
        TIMEOUT,
        Limits { places, ..limits },
        |clients| {
            let open_one = |from| (from, open_session(clients, from, session.clone(), 64).unwrap());
            let mut held: Vec<_> = [2, 3, 2, 3, 2, 3].map(open_one).into();
            refused(clients, 2, 64, "--peers-per-address");
            for newcomer in [4, 5] {
                let one = open_one(newcomer);
                let (from, why) = ended(clients, &mut held);
                assert!([2, 3].contains(&from), "{from}");
                assert!(why.contains("give way to another address"), "{why}");
                held.push(one);
            }
            let count =
                |held: &[(u8, Held)], of| held.iter().filter(|(from, _)| *from == of).count();
            assert_eq!([2, 3, 4, 5].map(|of| count(&held, of)), [2, 2, 1, 1]);
            // None has more than the new address would have.
            for from in [2, 3, 4, 5] {
                refused(clients, from, 64, "--peers");
            }
            let one = open_one(6);
            assert!([2, 3].contains(&ended(clients, &mut held).0));
            held.push(one);
            clients.step();
            for (_, one) in held {
                one.connection.disconnect();
            }
            clients.step();
        },
        |serving| {
            serving.step();
            assert_eq!(serving.server.accounts.taken().0.peers, 6);
            let (failed, _) = &serving.server.outcomes.reported;
            assert!(failed.len() == 3 && failed[0].contains("give way"), "{failed:?}");
            serving.step();
            serving.until_true(|server| server.accounts.taken().0 == Taken::default());
        },
    );
}

#[test]
fn one_address_does_not_keep_all_memory_from_others() {
    const MIB: u64 = 1 << 20;
    // The overhead of sessions needs some memory, too.
    let places = Places {
        peers_max: 100,
        peers_per_source_max: 100,
        memory_max: 4 * MIB + MIB / 2,
        memory_per_source_max: 4 * MIB,
    };
    scene(
        By::KernelTcp,
        TIMEOUT,
        Limits { places, memory_max: 2 * MIB, ..limits() },
        |clients| {
            let open_one = |from, len| (from, open(clients, from, len).unwrap());
            let mut held = vec![open_one(2, MIB / 2)];
            held.extend((0..3).map(|_| open_one(2, MIB)));
            refused(clients, 2, MIB, "--total-size");
            held.push(open_one(3, MIB / 2));
            held.push(open_one(4, MIB));
            // The largest session of the address with most memory.
            assert_eq!(ended(clients, &mut held).0, 2);
            held.push(open_one(4, MIB));
            assert_eq!(ended(clients, &mut held).0, 2);
            // The new address would have nearly as much as the address with most.
            refused(clients, 3, 2 * MIB - MIB / 2, "--total-size");
            clients.step();
            drop(held);
            clients.step();
        },
        |serving| {
            serving.step();
            let taken = serving.server.accounts.taken().0;
            assert_eq!(taken.peers, 5);
            let beside = taken.memory - 4 * MIB;
            assert!(beside > 5 * SESSION_BYTES && beside < 20 * SESSION_BYTES, "{beside}");
            serving.step();
            serving.until_true(|server| server.accounts.taken().0 == Taken::default());
        },
    );
}

/// Sessions are evicted only if that makes enough room.
#[test]
fn small_sessions_do_not_give_way_to_one_that_is_too_large_for_them() {
    const MIB: u64 = 1 << 20;
    const SESSIONS: usize = 40;
    let places = Places {
        peers_max: 100,
        peers_per_source_max: 100,
        memory_max: 3 * MIB + MIB / 2,
        memory_per_source_max: 3 * MIB + MIB / 2,
    };
    scene(
        By::KernelTcp,
        TIMEOUT,
        Limits { places, memory_max: 2 * MIB, ..limits() },
        |clients| {
            let held: Vec<_> = (0..SESSIONS).map(|_| open(clients, 2, MIB / 16).unwrap()).collect();
            // More sessions would have to end than may.
            refused(clients, 3, 2 * MIB, "--total-size");
            clients.step();
            let other = open(clients, 3, MIB).unwrap();
            clients.step();
            drop((held, other));
            clients.step();
        },
        |serving| {
            serving.step();
            assert_eq!(serving.server.outcomes.reported.0, [""; 0]);
            assert_eq!(serving.server.accounts.taken().0.peers, SESSIONS);
            serving.step();
            let ended = serving.server.outcomes.reported.0.len();
            assert!((1..=EVICTIONS_MAX).contains(&ended), "{ended}");
            assert_eq!(serving.server.accounts.taken().0.peers, SESSIONS + 1 - ended);
            serving.step();
            serving.until_true(|server| server.accounts.taken().0 == Taken::default());
        },
    );
}

/// RFC 5042 §6.2.1: guessed steering tags are counted.
#[test]
fn accesses_that_are_refused_are_counted() {
    const GUESSES: u64 = 5;
    for by in [By::KernelTcp, By::Link] {
        scene(
            by,
            TIMEOUT,
            limits(),
            |clients| {
                for guess in 0..GUESSES {
                    let mut client = clients.open(Session::Memory, 64, 0).unwrap();
                    let memory = clients.host.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
                    let region = client.welcome.region;
                    let stag = Stag(region.stag.0 ^ 0x100);
                    let (wr, sge) = (WrId(1), memory.sge(0..8));
                    client
                        .post(match guess {
                            0 => SendWr::read(wr, RemoteBuffer { stag, to: region.to }, sge),
                            1 => {
                                let to = TaggedOffset(region.to.0 + 60);
                                SendWr::write(wr, RemoteBuffer { to, ..region }, [sge])
                            }
                            _ => SendWr::write(wr, RemoteBuffer { stag, to: region.to }, [sge]),
                        })
                        .unwrap();
                    let failed = loop {
                        match client.wait() {
                            Ok(Happened::Done(_)) => {}
                            Ok(other) => panic!("{other:?}"),
                            Err(error) => break format!("{error:#}"),
                        }
                        if client.connection.next_event(Duration::ZERO).unwrap().is_some() {
                            break String::new();
                        }
                    };
                    assert!(!failed.contains(['{', '[']), "in words: {failed}");
                }
                clients.step();
            },
            |serving| {
                serving.step();
                serving.until_true(|server| {
                    server.outcomes.reported.0.len() == usize::try_from(GUESSES).unwrap()
                });
                let mut watch = serving.server.host.endpoint.watch();
                serving.until_true(|_| {
                    let seen = watch.look(Duration::ZERO);
                    seen.is_new && seen.figures.total().accesses_refused == GUESSES
                });
            },
        );
    }
}
