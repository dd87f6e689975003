//! The C interface of rdma-core's `verbs.h`, `sa.h` and `rdma_cma.h`: its structures with their
//! names, fields and offsets, and the constants that this crate uses.
//!
//! Constants of C's enumerations are plain integers, because an application may store any value
//! there. A union without a name in C is a named field here. The macro makes a type, compares its
//! offsets with the numbers beside the fields, and lists it for `tests/layout.rs`, which compares
//! the list with the installed headers.
#![allow(missing_docs, reason = "fields and constants are described in rdma-core's manual pages")]
#![allow(unreachable_pub, reason = "the whole interface, whatever of it the crate shows")]
#![expect(non_snake_case, reason = "C's names, those of the ABI's placeholders too")]
#![expect(unsafe_code, reason = "zero bytes are a value of every type here, and C relies on that")]

/// Type of an operation in a structure: `None` for NULL.
macro_rules! op {
    (fn($($args:tt)*) $(-> $answer:ty)?) => {
        Option<unsafe extern "C" fn($($args)*) $(-> $answer)?>
    };
}

/// `struct name as "its C type": size { offset field as "its C name": type, … }`. A type without a
/// name in C is given by an expression of that type or, if there is none, by an empty string.
macro_rules! c_types {
    ($list:ident; $(
        $(#[doc = $doc:literal])*
        $kind:ident $name:ident $(as $c_name:literal)?: $size:literal {
            $($offset:literal $field:ident $(as $c_field:literal)?: $type:ty,)*
        }
    )*) => {
        $(
            $(#[doc = $doc])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub $kind $name {
                $(pub $field: $type,)*
            }

            debug!($kind $name $($field)*);

            impl $name {
                /// Returns a value of zero bytes, as applications make theirs by `memset`.
                #[must_use]
                pub const fn zeroed() -> Self {
                    // SAFETY: integers, pointers, options of functions, and libc's structures of
                    // such: zero is a value of each.
                    unsafe { core::mem::zeroed() }
                }
            }

            // On other processors libc's locks have other sizes.
            #[cfg(target_arch = "x86_64")]
            const _: () = {
                assert!(size_of::<$name>() == $size);
                $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
            };
        )*

        /// Every type of this file.
        pub const $list: &[$crate::abi::Type] = &[$($crate::abi::Type {
            kind: stringify!($kind),
            name: stringify!($name),
            c_name: &[$($c_name)?],
            size: size_of::<$name>(),
            fields: &[$($crate::abi::Field {
                name: stringify!($field),
                c_name: &[$($c_field)?],
                offset: core::mem::offset_of!($name, $field),
                size: size_of::<$type>(),
            },)*],
        },)*];
    };
}

/// All fields of a structure; only the name of a union, whose value is ambiguous.
macro_rules! debug {
    (struct $name:ident $($field:ident)*) => {
        impl core::fmt::Debug for $name {
            fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let mut shown = formatter.debug_struct(stringify!($name));
                $(shown.field(stringify!($field), &self.$field);)*
                shown.finish()
            }
        }
    };
    (union $name:ident $($field:ident)*) => {
        impl core::fmt::Debug for $name {
            fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                formatter.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

/// `NAME: type = value;` …
macro_rules! c_constants {
    ($list:ident; $($name:ident: $type:ty = $value:expr;)*) => {
        $(pub const $name: $type = $value;)*

        /// Every constant of this file.
        pub const $list: &[(&str, i128)] = &[$((stringify!($name), $name as i128),)*];
    };
}

/// Types that C knows by name only: objects of operations that no device here has.
macro_rules! opaque {
    ($($name:ident)*) => {
        $(
            #[derive(Debug)]
            #[repr(C)]
            pub struct $name {
                _unknown: [u8; 0],
            }
        )*
    };
}

mod cm;
mod device;
mod event;
mod extended;
mod memory;
mod queue;
mod work;

pub use self::{cm::*, device::*, event::*, extended::*, memory::*, queue::*, work::*};

opaque! {
    _compat_ibv_port_attr
    ibv_alloc_dm_attr
    ibv_counter_attach_attr
    ibv_counters
    ibv_counters_init_attr
    ibv_dm
    ibv_flow
    ibv_flow_action
    ibv_flow_action_esp_attr
    ibv_flow_attr
    ibv_ops_wr
    ibv_qp_open_attr
    ibv_qp_rate_limit_attr
    ibv_rwq_ind_table
    ibv_rwq_ind_table_init_attr
    ibv_wq
    ibv_wq_attr
    ibv_wq_init_attr
    ibv_xrcd_init_attr
    verbs_ex_private
}

/// One structure or union, compared with C.
#[derive(Debug)]
pub struct Type {
    /// `struct` or `union`.
    pub kind: &'static str,
    pub name: &'static str,
    /// Its C type if that is not kind and name; empty if C has none.
    pub c_name: &'static [&'static str],
    pub size: usize,
    pub fields: &'static [Field],
}

/// One field of a [`Type`].
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    /// Its C name if that differs.
    pub c_name: &'static [&'static str],
    pub offset: usize,
    pub size: usize,
}

/// All types, file by file.
pub const TYPES: [&[Type]; 7] =
    [CM_TYPES, DEVICE_TYPES, EVENT_TYPES, EXTENDED_TYPES, MEMORY_TYPES, QUEUE_TYPES, WORK_TYPES];

/// All constants, file by file.
pub const CONSTANTS: [&[(&str, i128)]; 6] = [
    CM_CONSTANTS,
    DEVICE_CONSTANTS,
    EVENT_CONSTANTS,
    MEMORY_CONSTANTS,
    QUEUE_CONSTANTS,
    WORK_CONSTANTS,
];
