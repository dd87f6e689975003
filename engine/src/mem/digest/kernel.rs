//! The digest kernels, and the choice of one for this processor.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use urnic_netdev::SharedSlice;
use urnic_netdev::shared_memory::copy_across;

use super::portable;

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::{fold512, interleaved, quadwords};

/// A CRC32c kernel that this processor supports. All kernels give the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Way);

/// Kernels from the slowest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Way {
    /// The `crc32c` crate, over a bounce block: any processor.
    Portable = 1,
    /// Three lanes of aarch64's CRC instructions.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    Lanes,
    /// The CRC instruction beside folding by 128 bits.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Interleaved128,
    /// The CRC instruction beside folding by 256 bits, and one pass for a copy.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Interleaved256,
    /// Folding by 512 bits, and one pass for a copy.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Fold512,
}

impl Way {
    const ALL: &[Self] = &[
        Self::Portable,
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        Self::Lanes,
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Self::Interleaved128,
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Self::Interleaved256,
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Self::Fold512,
    ];

    fn is_available(self) -> bool {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        use std::arch::is_x86_feature_detected as has;
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        let lanes = has!("sse4.2") && has!("pclmulqdq");
        match self {
            Self::Portable => true,
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            Self::Lanes => {
                std::arch::is_aarch64_feature_detected!("crc")
                    && std::arch::is_aarch64_feature_detected!("aes")
                    && std::arch::is_aarch64_feature_detected!("pmull")
            }
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Interleaved128 => lanes,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Interleaved256 => lanes && has!("avx2") && has!("vpclmulqdq"),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Self::Fold512 => {
                lanes
                    && has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512vl")
                    && has!("avx512vbmi2")
                    && has!("vpclmulqdq")
            }
        }
    }
}

/// As the number of a [`Way`]. Zero: not chosen yet.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

const PORTABLE: u8 = Way::Portable as u8;
#[cfg(all(target_arch = "aarch64", not(miri)))]
const LANES: u8 = Way::Lanes as u8;
#[cfg(all(target_arch = "x86_64", not(miri)))]
const INTERLEAVED_128: u8 = Way::Interleaved128 as u8;
#[cfg(all(target_arch = "x86_64", not(miri)))]
const INTERLEAVED_256: u8 = Way::Interleaved256 as u8;
#[cfg(all(target_arch = "x86_64", not(miri)))]
const FOLD_512: u8 = Way::Fold512 as u8;

impl Kernel {
    /// The fastest kernel of this processor, which the engine uses.
    #[inline]
    #[must_use]
    pub fn chosen() -> Self {
        match CHOSEN.load(Relaxed) {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            FOLD_512 => Self(Way::Fold512),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            INTERLEAVED_256 => Self(Way::Interleaved256),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            INTERLEAVED_128 => Self(Way::Interleaved128),
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            LANES => Self(Way::Lanes),
            PORTABLE => Self(Way::Portable),
            _ => choose(),
        }
    }

    /// All kernels of this processor, the fastest last: for tests and benches.
    pub fn available() -> impl Iterator<Item = Self> {
        Way::ALL.iter().copied().filter(|way| way.is_available()).map(Self)
    }

    /// The method in a few words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Way::Portable => "crc32c crate",
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            Way::Lanes => "CRC in three lanes",
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Way::Interleaved128 => "PCLMULQDQ beside CRC32",
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Way::Interleaved256 => "VPCLMULQDQ (AVX2) beside CRC32",
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Way::Fold512 => "VPCLMULQDQ (AVX-512)",
        }
    }

    /// Adds `slice` to the running CRC32c `state`, a raw register.
    #[inline]
    #[must_use]
    pub fn append(self, state: u32, slice: SharedSlice<'_>) -> u32 {
        #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
        let (src, len) = (slice.as_ptr(), slice.len());
        match self.0 {
            Way::Portable => portable::append(state, slice),
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            // SAFETY: the processor has the features; the slice vouches for its bytes.
            Way::Lanes => unsafe { super::lanes::append(state, src, len) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above; all x86-64 kernels but the portable one imply SSE4.2.
            _ if len < fold512::FOLD_LEN_MIN => unsafe { quadwords::append(state, src, len) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above.
            Way::Interleaved128 => unsafe { interleaved::append_128(state, src, len) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above.
            Way::Interleaved256 => unsafe { interleaved::append_256(state, src, len) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above, and the run has `FOLD_LEN_MIN` bytes or more.
            Way::Fold512 => unsafe { fold512::append(state, src, len) },
        }
    }

    /// Copies `from` to `to` and adds the resulting bytes of `to` to the running CRC32c `state`.
    /// Panics if the lengths differ.
    #[inline]
    #[must_use]
    pub fn copy(self, state: u32, from: SharedSlice<'_>, to: &mut [u8]) -> u32 {
        assert_eq!(from.len(), to.len(), "a copy is as long as its source");
        // SAFETY: the slice vouches for its bytes; `to` is as long and, being `&mut`, overlaps
        // nothing that others access.
        unsafe { self.copy_raw::<false>(state, from, to.as_mut_ptr()) }
    }

    /// Copies to memory that another core may have used last. The CRC is of the bytes as stored, or
    /// as they are at `dst` afterwards.
    /// # Safety
    /// `dst` must be writable for as many bytes, without overlap; others may access them meanwhile.
    #[inline]
    pub(super) unsafe fn copy_far(self, state: u32, from: SharedSlice<'_>, dst: *mut u8) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { self.copy_raw::<true>(state, from, dst) }
    }

    /// # Safety
    /// As [`copy_far`](Self::copy_far).
    #[inline]
    unsafe fn copy_raw<const FAR: bool>(
        self,
        state: u32,
        from: SharedSlice<'_>,
        dst: *mut u8,
    ) -> u32 {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        let (src, len) = (from.as_ptr(), from.len());
        match self.0 {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Way::Interleaved256 if len >= interleaved::TURN_LEN => {
                // SAFETY: the processor has the features; the slice vouches for its bytes, the
                // caller for `dst`.
                unsafe { interleaved::copy_256(state, src, dst, len) }
            }
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Way::Fold512 if len >= fold512::FOLD_LEN_MIN && FAR => {
                // SAFETY: as above, and the run has `FOLD_LEN_MIN` bytes or more.
                unsafe { fold512::copy_far(state, src, dst, len) }
            }
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Way::Fold512 if len >= fold512::FOLD_LEN_MIN => {
                // SAFETY: as above.
                unsafe { fold512::copy(state, src, dst, len) }
            }
            // SAFETY: the caller's promise.
            _ => unsafe { self.copy_by_blocks(state, from, dst) },
        }
    }

    /// Two passes. The second reads the block from the nearest cache.
    /// # Safety
    /// As [`copy_far`](Self::copy_far).
    unsafe fn copy_by_blocks(self, mut state: u32, from: SharedSlice<'_>, dst: *mut u8) -> u32 {
        /// Half of the smallest first-level caches, so that a copied block is still in the cache.
        const BLOCK_LEN: usize = 16 << 10;
        let mut at = 0;
        while at < from.len() {
            let block = from.part(at, BLOCK_LEN.min(from.len() - at));
            let to = dst.wrapping_add(at);
            // SAFETY: the slice vouches for its bytes, the caller for as many at `dst`.
            unsafe { copy_across(block.as_ptr(), to, block.len()) };
            // SAFETY: as above; they may change, which such a slice allows for.
            let copied = unsafe { SharedSlice::from_raw_parts(to, block.len()) };
            state = self.append(state, copied);
            at += block.len();
        }
        state
    }
}

#[cold]
fn choose() -> Kernel {
    let fastest = Kernel::available().last().expect("the portable one is always there");
    CHOSEN.store(fastest.0 as u8, Relaxed);
    fastest
}
