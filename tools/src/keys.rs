//! Keys that a server and its clients share, and the files that hold them.
//!
//! A line is `NAME KEY`, at a server followed by the rights of the holder:
//!
//! ```text
//! # name  64 hexadecimal digits  read, write, folder=DIR, quota=SIZE
//! alice   0f1e…                  read write folder=alice quota=10G
//! ```
//!
//! A key is 32 random bytes, and is only used to compute HMAC-SHA-256 (RFC 2104). Each use has a
//! label of its own, so that no proof passes for another.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::figure::hex;
use crate::size;

/// A secret of 32 bytes.
#[derive(Clone)]
pub(crate) struct Key([u8; KEY_LEN]);

/// Bytes of a key.
const KEY_LEN: usize = 32;
/// Bytes of a proof: HMAC-SHA-256-128 (RFC 4868 §2.3).
pub(crate) const PROOF_LEN: usize = 16;
/// Bytes of the name by which a client calls its key.
pub(crate) const ID_LEN: usize = 8;

/// Use of a key. The labels are no beginnings of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Name of the key, which says nothing about it.
    Id,
    /// Challenge of a server, by a secret that only the server has.
    Challenge,
    /// Proof of a client.
    Client,
    /// Proof of a server.
    Server,
}

impl Use {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Id => b"urnic serve 1 id\0",
            Self::Challenge => b"urnic serve 1 challenge\0",
            Self::Client => b"urnic serve 1 client\0",
            Self::Server => b"urnic serve 1 server\0",
        }
    }
}

impl Key {
    /// Draws a key.
    ///
    /// # Errors
    /// If the operating system has no randomness.
    pub(crate) fn random() -> anyhow::Result<Self> {
        random().map(Self)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let octet = |at: usize| {
            let digits =
                text.get(at..at + 2).filter(|two| two.bytes().all(|c| c.is_ascii_hexdigit()));
            u8::from_str_radix(digits?, 16).ok()
        };
        let mut octets = [0; KEY_LEN];
        ensure!(text.len() == 2 * KEY_LEN, "a key has {} hexadecimal digits", 2 * KEY_LEN);
        for (index, to) in octets.iter_mut().enumerate() {
            *to = octet(2 * index).context("a key has hexadecimal digits only")?;
        }
        Ok(Self(octets))
    }

    /// The key as in a file.
    pub(crate) fn text(&self) -> String {
        hex(&self.0)
    }

    /// Name by which a client calls its key.
    pub(crate) fn id(&self) -> [u8; ID_LEN] {
        let [id @ .., _, _, _, _, _, _, _, _] = self.proof(Use::Id, &[]);
        id
    }

    /// Computes the proof over `parts`, one after the other.
    pub(crate) fn proof(&self, purpose: Use, parts: &[&[u8]]) -> [u8; PROOF_LEN] {
        let whole = self.mac(purpose, parts).finalize().into_bytes();
        std::array::from_fn(|index| whole[index])
    }

    /// Returns true if this is the proof over `parts`. Takes the same time for every wrong proof.
    pub(crate) fn is_proof(&self, purpose: Use, parts: &[&[u8]], proof: &[u8; PROOF_LEN]) -> bool {
        self.mac(purpose, parts).verify_truncated_left(proof).is_ok()
    }

    fn mac(&self, purpose: Use, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(purpose.label());
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Draws bytes that no peer can guess.
///
/// # Errors
/// If the operating system has no randomness.
pub(crate) fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut octets = [0; N];
    getrandom::fill(&mut octets).context("drawing a random number")?;
    Ok(octets)
}

/// A line of a file of keys.
#[derive(Clone, Debug)]
pub(crate) struct KeyLine {
    /// Name of the holder, for the log.
    pub(crate) name: String,
    pub(crate) key: Key,
    /// The holder may get files.
    pub(crate) read: bool,
    /// The holder may put files.
    pub(crate) write: bool,
    /// Folder within `--dir` that holds the files of the holder.
    pub(crate) folder: Option<String>,
    /// Bytes of the files that the holder may put.
    pub(crate) quota: Option<u64>,
}

impl KeyLine {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut words = text.split_whitespace();
        let name = words.next().context("there is no name")?.to_owned();
        check_name(&name)?;
        let key = Key::parse(words.next().context("there is no key after the name")?)?;
        let mut line = Self { name, key, read: false, write: false, folder: None, quota: None };
        for word in words {
            match word.split_once('=') {
                None if word == "read" => line.read = true,
                None if word == "write" => line.write = true,
                Some(("folder", folder)) if !folder.is_empty() => {
                    line.folder = Some(folder.to_owned());
                }
                Some(("quota", quota)) => {
                    let quota =
                        size::parse(quota).map_err(|why| anyhow::anyhow!("quota: {why}"))?;
                    line.quota = Some(quota);
                }
                // The word may be a part of a key.
                _ => bail!("a word is none of read, write, folder=DIR and quota=SIZE"),
            }
        }
        Ok(line)
    }
}

/// Checks the name of a key.
///
/// # Errors
/// If it is too long, or has characters that are not allowed.
pub(crate) fn check_name(name: &str) -> anyhow::Result<()> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    ensure!(
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.len() <= NAME_LEN_MAX
            && name.chars().all(is_allowed),
        "a name begins with a letter and has at most {NAME_LEN_MAX} letters, digits and '.', '_', \
         '-', '@'"
    );
    Ok(())
}

/// Reads a file of keys.
///
/// # Errors
/// If it cannot be read, other users can read or change it, or a line is invalid. No message
/// contains a key.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<KeyLine>> {
    let shown = path.display();
    let file = File::open(path).with_context(|| shown.to_string())?;
    let mode = file.metadata().with_context(|| shown.to_string())?.mode();
    ensure!(
        mode & OF_OTHERS == 0,
        "{shown}: other users can read or change these keys: 'chmod 600 {shown}'"
    );
    let lines = parse(BufReader::new(file.take(FILE_LEN_MAX)));
    lines.with_context(|| shown.to_string())
}

fn parse(input: impl BufRead) -> anyhow::Result<Vec<KeyLine>> {
    let mut lines = Vec::new();
    let (mut names, mut ids) = (HashSet::new(), HashSet::new());
    for (index, text) in input.lines().enumerate() {
        let at = || format!("line {}", index + 1);
        let text = text.with_context(at)?;
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let line = KeyLine::parse(text).with_context(at)?;
        let is_new = names.insert(line.name.clone()) && ids.insert(line.key.id());
        ensure!(is_new, "{}: the name or the key is in an earlier line, too", at());
        lines.push(line);
    }
    ensure!(!lines.is_empty(), "there is no key: 'urnic keygen FILE' makes one");
    Ok(lines)
}

/// Reads the file of a client, which holds one key; its rights are the server's business.
///
/// # Errors
/// As for [`read`], and if it holds several keys.
pub(crate) fn read_one(path: &Path) -> anyhow::Result<Key> {
    match <[KeyLine; 1]>::try_from(read(path)?) {
        Ok([line]) => Ok(line.key),
        Err(lines) => bail!("{} has {} keys: give a file with one", path.display(), lines.len()),
    }
}

/// Longest name of a key in bytes.
const NAME_LEN_MAX: usize = 64;
/// Bytes of a file that are read.
const FILE_LEN_MAX: u64 = 16 << 20;
/// Bits of a mode: the group or others may do anything.
const OF_OTHERS: u32 = 0o077;

#[cfg(test)]
mod tests {
    use super::*;

    const ZEROS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
    const ONES: &str = "1111111111111111111111111111111111111111111111111111111111111111";

    fn lines(text: &str) -> Result<Vec<KeyLine>, String> {
        parse(text.as_bytes()).map_err(|why| format!("{why:#}"))
    }

    #[test]
    fn lines_name_keys_and_rights() {
        let text =
            format!("# keys\n\n a {ZEROS} read write folder=x/y quota=1G \nb@c.d-e_f {ONES}\n");
        let [a, b] = <[KeyLine; 2]>::try_from(lines(&text).unwrap()).unwrap();
        assert_eq!((&*a.name, a.read, a.write, a.quota), ("a", true, true, Some(1 << 30)));
        assert_eq!(a.folder.as_deref(), Some("x/y"));
        assert_eq!((a.key.text(), b.key.text()), (ZEROS.into(), ONES.into()));
        assert_eq!((&*b.name, b.read, b.write, b.quota), ("b@c.d-e_f", false, false, None));
        assert_eq!(format!("{:?}", a.key), "Key", "no log shows a key");
    }

    #[test]
    fn invalid_lines_are_refused_without_showing_a_key() {
        for (text, part) in [
            (String::new(), "there is no key"),
            ("a".into(), "line 1: there is no key after"),
            (format!("a {}", &ZEROS[1..]), "64 hexadecimal digits"),
            (format!("a {}ü", &ZEROS[2..]), "hexadecimal digits only"),
            (format!("a +{}", &ZEROS[1..]), "hexadecimal digits only"),
            (format!("\na/b {ZEROS}"), "line 2: a name begins"),
            (format!("a {ZEROS} {ONES}"), "a word is none of"),
            (format!("a {ZEROS} folder="), "a word is none of"),
            (format!("a {ZEROS} quota=x"), "quota"),
            (format!("a {ZEROS}\na {ONES}"), "line 2: the name or the key"),
            (format!("a {ZEROS}\nb {ZEROS}"), "line 2: the name or the key"),
        ] {
            let why = lines(&text).unwrap_err();
            assert!(why.contains(part), "{text:?}: {why}");
            assert!(!why.contains("0000") && !why.contains("1111"), "{why}");
        }
    }

    #[test]
    fn a_proof_holds_for_its_key_its_use_and_its_parts_only() {
        let (key, other) = (Key([0x0b; KEY_LEN]), Key::random().unwrap());
        let proof = key.proof(Use::Client, &[b"Hi ", b"There"]);
        assert!(key.is_proof(Use::Client, &[b"Hi There"], &proof));
        assert!(!key.is_proof(Use::Server, &[b"Hi There"], &proof));
        assert!(!key.is_proof(Use::Client, &[b"Hi There!"], &proof));
        assert!(!other.is_proof(Use::Client, &[b"Hi There"], &proof));
        for bit in 0..8 * PROOF_LEN {
            let mut wrong = proof;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.is_proof(Use::Client, &[b"Hi There"], &wrong), "bit {bit}");
        }
        assert_ne!(key.id(), other.id());
    }

    #[test]
    fn proofs_are_hmac_sha_256() {
        // Computed by another program: hmac(key, label + "Hi There"), its first 16 bytes.
        let proof = Key([0x0b; KEY_LEN]).proof(Use::Client, &[b"Hi There"]);
        assert_eq!(hex(&proof), "179cbacb820054988a572d8003a656d9");
    }
}
