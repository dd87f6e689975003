//! Files at the server. The peer moves the octets; here they are checked and put on the disk, by a
//! thread for each transfer.

use std::fs::File;
use std::io;
use std::sync::mpsc::{
    Receiver, Sender, SyncSender, TryRecvError, TrySendError, channel, sync_channel,
};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use urnic::driver::monotonic_now;
use urnic::mem::{Access, Region};
use urnic::time::Instant;
use urnic::verbs::{Mr, Qp, RemoteBuffer};

use crate::channel::Channel;
use crate::host::Host;
use crate::protocol::{CHECKS_MAX, Control};
use crate::server::role::register;
use crate::transfer::{Hashing, Partial, Place, chunk_crc};

/// A thread that answers control messages about a file, in order.
#[derive(Debug)]
struct Clerk {
    questions: SyncSender<Control>,
    answers: Receiver<Control>,
    /// Questions not answered.
    open: usize,
    /// When the peer was last told anything.
    told: Instant,
}

impl Clerk {
    fn start(
        host: &Host,
        work: impl FnOnce(&Receiver<Control>, &Replies) + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (questions, questions_rx) = sync_channel(CHECKS_MAX);
        let (answers_tx, answers) = channel();
        let replies = Replies { answers: answers_tx, waker: host.endpoint.waker() };
        thread::Builder::new()
            .name("urnic-file".to_owned())
            .spawn(move || work(&questions_rx, &replies))
            .context("starting a thread for the file")?;
        Ok(Self { questions, answers, open: 0, told: monotonic_now() })
    }

    fn ask(&mut self, question: Control) -> anyhow::Result<()> {
        match self.questions.try_send(question) {
            Ok(()) => {
                self.open += 1;
                Ok(())
            }
            Err(TrySendError::Full(_)) => bail!("the peer asked too many questions at a time"),
            Err(TrySendError::Disconnected(_)) => bail!("the file's thread has ended"),
        }
    }

    /// Passes answers on, and says so now and then when one takes long.
    fn turn(&mut self, qp: &Qp, to: &mut Channel) -> anyhow::Result<Option<Control>> {
        match self.answers.try_recv() {
            Ok(answer) => {
                self.open -= 1;
                self.told = monotonic_now();
                to.send(qp, &answer)?;
                return Ok(Some(answer));
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) if self.open == 0 => {}
            Err(TryRecvError::Disconnected) => bail!("the file's thread has ended"),
        }
        if self.open > 0 && monotonic_now() - self.told > WORKING_INTERVAL {
            self.told = monotonic_now();
            to.send(qp, &Control::Working)?;
        }
        Ok(None)
    }
}

/// The way back from a file's thread.
struct Replies {
    answers: Sender<Control>,
    waker: Waker,
}

impl Replies {
    fn give(&self, answer: Control) {
        // Nobody may be left who wants to know.
        let _gone = self.answers.send(answer);
        self.waker.wake_by_ref();
    }
}

/// How often the peer is told that an answer takes longer.
const WORKING_INTERVAL: Duration = Duration::from_secs(1);

/// A file that comes.
#[derive(Debug)]
pub(crate) struct Put {
    /// Gone when all has been written.
    region: Option<Mr>,
    present: u64,
    clerk: Clerk,
    is_committed: bool,
}

impl Put {
    pub(crate) fn new(
        host: &Host,
        qp: &Qp,
        place: Place,
        len: u64,
        force: bool,
    ) -> anyhow::Result<Self> {
        let partial = Partial::open(place, len, force)?;
        let region = Region::file(partial.file(), 0, usize::try_from(len)?).context("mapping")?;
        let region = register(host, qp, region, Access::REMOTE_WRITE)?;
        let present = partial.chunks_present();
        let clerk = Clerk::start(host, move |questions, replies| {
            take_in(partial, questions, replies);
        })?;
        Ok(Self { region: Some(region), present, clerk, is_committed: false })
    }

    pub(crate) fn welcome(&self) -> (RemoteBuffer, u64) {
        let region = self.region.as_ref().expect("nothing has been committed yet");
        (region.remote(0), self.present)
    }

    pub(crate) fn handle_control(&mut self, message: Control) -> anyhow::Result<Option<Control>> {
        match message {
            Control::Check { .. } | Control::Verify { .. } if self.region.is_some() => {}
            // What is hashed from here on, the peer cannot change any more.
            Control::Commit { .. } if self.region.take().is_some() => {}
            other => return Err(anyhow!("the peer said {other:?}, which makes no sense here")),
        }
        self.clerk.ask(message)?;
        Ok(None)
    }

    pub(crate) fn turn(&mut self, qp: &Qp, channel: &mut Channel) -> anyhow::Result<()> {
        match self.clerk.turn(qp, channel)? {
            Some(Control::Committed) => self.is_committed = true,
            Some(Control::NotVerified) => bail!("what arrived is not the file that was sent"),
            Some(Control::Failed(reason)) => bail!("{reason}"),
            _ => {}
        }
        Ok(())
    }

    pub(crate) const fn is_committed(&self) -> bool {
        self.is_committed
    }

    pub(crate) const fn is_working(&self) -> bool {
        self.clerk.open > 0
    }
}

/// The thread of a file that comes.
fn take_in(mut partial: Partial, questions: &Receiver<Control>, replies: &Replies) {
    while let Ok(question) = questions.recv() {
        let answer = match question {
            Control::Check { index, crc } => {
                partial.has(index, crc).map(|is_good| Control::Chunk { index, is_good })
            }
            Control::Verify { index, crc } => {
                partial.verify(index, crc).map(|is_good| Control::Chunk { index, is_good })
            }
            Control::Commit { sha256 } => {
                replies.give(match commit(partial, sha256) {
                    Ok(true) => Control::Committed,
                    Ok(false) => Control::NotVerified,
                    Err(error) => Control::Failed(format!("{error:#}")),
                });
                return;
            }
            _ => return,
        };
        let answer = answer.unwrap_or_else(|error| Control::Failed(error.to_string()));
        let is_last = matches!(answer, Control::Failed(_));
        replies.give(answer);
        if is_last {
            return;
        }
    }
}

/// Puts the file in its place; `false` when it is not the one that was sent.
fn commit(mut partial: Partial, sha256: [u8; 32]) -> anyhow::Result<bool> {
    let found = Hashing::new(partial.len()).finish(partial.file()).context("hashing the file")?;
    if found != sha256 {
        partial.forget().context("giving the file up")?;
        return Ok(false);
    }
    partial.commit()?;
    Ok(true)
}

/// A file that goes.
#[derive(Debug)]
pub(crate) struct Get {
    region: Mr,
    clerk: Clerk,
}

impl Get {
    pub(crate) fn new(host: &Host, qp: &Qp, file: File) -> anyhow::Result<Self> {
        let len = file.metadata()?.len();
        let region =
            Region::file_read_only(&file, 0, usize::try_from(len)?).context("mapping the file")?;
        let region = register(host, qp, region, Access::REMOTE_READ)?;
        let clerk = Clerk::start(host, move |questions, replies| {
            let ended = give_out(&file, len, questions, replies);
            if let Err(error) = ended {
                replies.give(Control::Failed(format!("reading the file: {error}")));
            }
        })?;
        Ok(Self { region, clerk })
    }

    pub(crate) fn welcome(&self) -> (RemoteBuffer, u64) {
        (self.region.remote(0), self.region.len() as u64)
    }

    pub(crate) fn handle_control(&mut self, message: Control) -> anyhow::Result<Option<Control>> {
        match message {
            Control::DigestRequest { .. } | Control::ShaRequest => self.clerk.ask(message)?,
            other => return Err(anyhow!("the peer said {other:?}, which makes no sense here")),
        }
        Ok(None)
    }

    pub(crate) fn turn(&mut self, qp: &Qp, channel: &mut Channel) -> anyhow::Result<()> {
        match self.clerk.turn(qp, channel)? {
            Some(Control::Failed(reason)) => bail!("{reason}"),
            _ => Ok(()),
        }
    }

    pub(crate) const fn is_working(&self) -> bool {
        self.clerk.open > 0
    }
}

/// The thread of a file that goes: hashes it while nobody asks anything.
fn give_out(
    file: &File,
    len: u64,
    questions: &Receiver<Control>,
    replies: &Replies,
) -> io::Result<()> {
    let mut hashing = Hashing::new(len);
    let mut whole = None;
    loop {
        let question = match whole {
            Some(_) => questions.recv().ok(),
            None => match questions.try_recv() {
                Ok(question) => Some(question),
                Err(TryRecvError::Disconnected) => None,
                Err(TryRecvError::Empty) => {
                    whole = hashing.step(file)?;
                    continue;
                }
            },
        };
        match question {
            Some(Control::DigestRequest { index }) => {
                let crc = chunk_crc(file, index, len)?;
                replies.give(Control::Digest { index, crc });
            }
            Some(Control::ShaRequest) => {
                let sha256 = loop {
                    match whole {
                        Some(sha256) => break sha256,
                        None => whole = hashing.step(file)?,
                    }
                };
                replies.give(Control::Sha { sha256 });
            }
            _ => return Ok(()),
        }
    }
}
