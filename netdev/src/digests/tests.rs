//! Compares digests of payloads in fragments of many lengths with their definition.

use super::*;
use crate::frame::TxFrame;
use crate::sys::digester::tests::{ADDER, field};
use crate::{Capabilities, Medium, TransmitError, TxChecksum};

/// Returns a digest at the end of every `len` bytes of payload, and of the rest.
pub(crate) fn digests_every(len: u32, payload_len: u32, is_scattered: bool) -> Vec<Digest> {
    let starts = (0..payload_len).step_by(len as usize);
    let ends = starts.map(|start| (start, (start + len).min(payload_len)));
    let whole = ends.filter(|(start, end)| end - start >= 4);
    // The first bytes are in the register already.
    whole
        .map(|(start, end)| {
            let from = (start + start % 5).min(end - 4);
            Digest { from, at: end - 4, register: start.wrapping_mul(77), is_scattered }
        })
        .collect()
}

/// Returns the payload as it must be sent.
pub(crate) fn expected(payload: &[SharedSlice<'_>], digests: Option<Digests<'_>>) -> Vec<u8> {
    let mut octets = Vec::new();
    for fragment in payload {
        let at = octets.len();
        octets.resize(at + fragment.len(), 0);
        fragment.copy_out(0, &mut octets[at..]);
    }
    let Some(Digests { digests, base, .. }) = digests else { return octets };
    for digest in digests {
        let (from, at) = ((digest.from - base) as usize, (digest.at - base) as usize);
        let field = field(digest.register, &octets[from..at]);
        octets[at..at + 4].copy_from_slice(&field);
    }
    octets
}

const fn frame<'a>(payload: &'a [SharedSlice<'a>], digests: Option<Digests<'a>>) -> TxFrame<'a> {
    let checksum = TxChecksum::Complete;
    TxFrame { head: b"head", payload, checksum, segment_size: None, digests }
}

#[test]
fn a_gathered_frame_has_its_digests_however_its_payload_is_cut() {
    let octets: Vec<u8> = (0..=255).cycle().take(1000).collect();
    for fragment_len in [1, 3, 4, 7, 99, 100, 101, 1000] {
        let payload: Vec<_> = octets.chunks(fragment_len).map(SharedSlice::from_bytes).collect();
        for (digest_len, is_scattered) in [(100, false), (100, true), (13, false), (4, true)] {
            let digests = digests_every(digest_len, 1000, is_scattered);
            // An excess or missing digest would change the bytes.
            for digests in [&digests[..], &digests[1..], &digests[..1]] {
                let digests = Some(Digests { digests, base: 0, digester: &ADDER });
                let frame = frame(&payload, digests);
                let mut gathered = vec![0xee; frame.len() + 1];
                assert_eq!(frame.gather(&mut gathered), frame.len());
                assert_eq!(gathered.pop(), Some(0xee));
                assert_eq!(gathered[..4], *b"head");
                assert!(gathered[4..] == expected(&payload, digests), "{fragment_len}");
            }
        }
    }
}

#[test]
fn a_frame_that_was_cut_from_a_run_counts_from_where_it_was() {
    let octets: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let digests = digests_every(100, 1000, false);
    let whole = Some(Digests { digests: &digests, base: 0, digester: &ADDER });
    let all = expected(&[SharedSlice::from_bytes(&octets)], whole);
    for (index, cut) in octets.chunks(200).enumerate() {
        let payload = [SharedSlice::from_bytes(cut)];
        let base = u32::try_from(index * 200).unwrap();
        let digests = &digests[index * 2..index * 2 + 2];
        let frame = frame(&payload, Some(Digests { digests, base, digester: &ADDER }));
        let mut gathered = vec![0; 204];
        frame.gather(&mut gathered);
        assert!(gathered[4..] == all[index * 200..][..200], "{index}");
    }
}

#[test]
fn a_device_that_computes_none_is_not_given_any() {
    let payload = [SharedSlice::from_bytes(&[1; 60])];
    let digests = Some(Digests { digests: &[], base: 0, digester: &ADDER });
    let capabilities = Capabilities {
        medium: Medium::Ip,
        mtu: 1500,
        segmentation_len_max: None,
        tx_checksum: false,
        fragments_max: 1,
        gather_len_min: 0,
        tx_digest: false,
    };
    assert_eq!(capabilities.check(&frame(&payload, digests)), Err(TransmitError::Refused));
    assert_eq!(capabilities.check(&frame(&payload, None)), Ok(()));
    let capabilities = Capabilities { tx_digest: true, ..capabilities };
    assert_eq!(capabilities.check(&frame(&payload, digests)), Ok(()));
}
