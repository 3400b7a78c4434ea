//! `csrc/xla_iree.h`, by hand: the same names, order and layout. The header has the documentation.
//!
//! `layout` in the tests compares every struct's size with what the C compiler says.

#![allow(non_camel_case_types, missing_docs)]

use std::ffi::{c_char, c_void};

pub const HH_IREE_ABI_VERSION: u32 = 1;
pub const HH_IREE_MAX_RANK: usize = 8;

macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
            _marker: std::marker::PhantomData<(*mut u8, std::marker::PhantomPinned)>,
        }
    )*};
}

opaque! {
    hh_iree_error_t hh_iree_runtime_t hh_iree_device_list_t hh_iree_device_t
    hh_iree_program_t hh_iree_buffer_t hh_iree_call_t
}

pub type hh_iree_log_fn_t =
    Option<unsafe extern "C" fn(user_data: *mut c_void, level: i32, text: *const c_char)>;
pub type hh_iree_release_fn_t = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

#[repr(C)]
pub struct hh_iree_runtime_options_t {
    pub struct_size: usize,
    pub log: hh_iree_log_fn_t,
    pub log_user_data: *mut c_void,
}

#[repr(C)]
pub struct hh_iree_device_info_t {
    pub struct_size: usize,
    pub driver: *const c_char,
    pub id: *const c_char,
    pub name: *const c_char,
    pub ordinal: usize,
}

#[repr(C)]
pub struct hh_iree_device_options_t {
    pub struct_size: usize,
    pub driver: *const c_char,
    pub device: *const c_char,
    pub workers: u32,
    pub worker_spin_us: u32,
}

#[repr(C)]
#[derive(Default)]
pub struct hh_iree_memory_stats_t {
    pub struct_size: usize,
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub allocated_bytes: u64,
    pub peak_bytes: u64,
    pub max_allocation_bytes: u64,
}

#[repr(C)]
pub struct hh_iree_upload_t {
    pub struct_size: usize,
    pub data: *const c_void,
    pub length: usize,
    pub dtype: i32,
    pub policy: i32,
    pub rank: usize,
    pub dims: [i64; HH_IREE_MAX_RANK],
    pub release: hh_iree_release_fn_t,
    pub release_user_data: *mut c_void,
    pub writable: bool,
}

#[repr(C)]
pub struct hh_iree_module_t {
    pub struct_size: usize,
    pub data: *const c_void,
    pub length: usize,
    pub release: hh_iree_release_fn_t,
    pub release_user_data: *mut c_void,
}

#[repr(C)]
pub struct hh_iree_parameter_t {
    pub struct_size: usize,
    pub scope: *const c_char,
    pub key: *const c_char,
    pub data: *const c_void,
    pub length: usize,
    pub release: hh_iree_release_fn_t,
    pub release_user_data: *mut c_void,
}

#[repr(C)]
pub struct hh_iree_program_options_t {
    pub struct_size: usize,
    pub modules: *const hh_iree_module_t,
    pub module_count: usize,
    pub parameters: *const hh_iree_parameter_t,
    pub parameter_count: usize,
}

type Failure = *mut hh_iree_error_t;

unsafe extern "C" {
    pub fn hh_iree_version() -> *const c_char;
    pub fn hh_iree_abi_version() -> u32;
    pub fn hh_iree_abi_sizes(sizes: *mut usize, capacity: usize) -> usize;

    pub fn hh_iree_error_code(error: *const hh_iree_error_t) -> i32;
    pub fn hh_iree_error_message(error: *const hh_iree_error_t) -> *const c_char;
    pub fn hh_iree_error_free(error: *mut hh_iree_error_t);

    pub fn hh_iree_runtime_create(
        options: *const hh_iree_runtime_options_t,
        out_runtime: *mut *mut hh_iree_runtime_t,
    ) -> Failure;
    pub fn hh_iree_runtime_free(runtime: *mut hh_iree_runtime_t);
    pub fn hh_iree_runtime_driver(runtime: *const hh_iree_runtime_t, index: usize)
    -> *const c_char;

    pub fn hh_iree_device_list_create(
        runtime: *mut hh_iree_runtime_t,
        driver: *const c_char,
        out_list: *mut *mut hh_iree_device_list_t,
    ) -> Failure;
    pub fn hh_iree_device_list_count(list: *const hh_iree_device_list_t) -> usize;
    pub fn hh_iree_device_list_get(
        list: *const hh_iree_device_list_t,
        index: usize,
        out_info: *mut hh_iree_device_info_t,
    ) -> Failure;
    pub fn hh_iree_device_list_free(list: *mut hh_iree_device_list_t);

    pub fn hh_iree_device_create(
        runtime: *mut hh_iree_runtime_t,
        options: *const hh_iree_device_options_t,
        out_device: *mut *mut hh_iree_device_t,
    ) -> Failure;
    pub fn hh_iree_device_free(device: *mut hh_iree_device_t);
    pub fn hh_iree_device_info(
        device: *const hh_iree_device_t,
        out_info: *mut hh_iree_device_info_t,
    ) -> Failure;
    pub fn hh_iree_device_import_alignment(device: *const hh_iree_device_t) -> usize;
    pub fn hh_iree_device_shares_host_memory(device: *const hh_iree_device_t) -> bool;
    pub fn hh_iree_device_query(
        device: *const hh_iree_device_t,
        category: *const c_char,
        key: *const c_char,
        out_value: *mut i64,
    ) -> Failure;
    pub fn hh_iree_device_memory(
        device: *const hh_iree_device_t,
        out_stats: *mut hh_iree_memory_stats_t,
    ) -> Failure;

    pub fn hh_iree_dtype_bits(dtype: i32) -> u32;
    pub fn hh_iree_buffer_upload(
        device: *mut hh_iree_device_t,
        upload: *const hh_iree_upload_t,
        out_buffer: *mut *mut hh_iree_buffer_t,
    ) -> Failure;
    pub fn hh_iree_buffer_allocate(
        device: *mut hh_iree_device_t,
        dtype: i32,
        rank: usize,
        dims: *const i64,
        out_buffer: *mut *mut hh_iree_buffer_t,
    ) -> Failure;
    pub fn hh_iree_buffer_alias(
        buffer: *mut hh_iree_buffer_t,
        dtype: i32,
        rank: usize,
        dims: *const i64,
        out_buffer: *mut *mut hh_iree_buffer_t,
    ) -> Failure;
    pub fn hh_iree_buffer_free(buffer: *mut hh_iree_buffer_t);
    pub fn hh_iree_buffer_dtype(buffer: *const hh_iree_buffer_t) -> i32;
    pub fn hh_iree_buffer_rank(buffer: *const hh_iree_buffer_t) -> usize;
    pub fn hh_iree_buffer_dim(buffer: *const hh_iree_buffer_t, index: usize) -> i64;
    pub fn hh_iree_buffer_byte_length(buffer: *const hh_iree_buffer_t) -> u64;
    pub fn hh_iree_buffer_origin(buffer: *const hh_iree_buffer_t) -> i32;
    pub fn hh_iree_buffer_host_address(buffer: *mut hh_iree_buffer_t) -> *const c_void;
    pub fn hh_iree_buffer_read(
        buffer: *mut hh_iree_buffer_t,
        offset: u64,
        target: *mut c_void,
        length: usize,
    ) -> Failure;
    pub fn hh_iree_buffer_write(
        buffer: *mut hh_iree_buffer_t,
        offset: u64,
        source: *const c_void,
        length: usize,
    ) -> Failure;
    pub fn hh_iree_buffer_zero(buffer: *mut hh_iree_buffer_t) -> Failure;

    pub fn hh_iree_program_create(
        device: *mut hh_iree_device_t,
        options: *const hh_iree_program_options_t,
        out_program: *mut *mut hh_iree_program_t,
    ) -> Failure;
    pub fn hh_iree_program_free(program: *mut hh_iree_program_t);
    pub fn hh_iree_program_has_function(
        program: *const hh_iree_program_t,
        name: *const c_char,
    ) -> Failure;

    pub fn hh_iree_call_create(
        program: *mut hh_iree_program_t,
        name: *const c_char,
        out_call: *mut *mut hh_iree_call_t,
    ) -> Failure;
    pub fn hh_iree_call_free(call: *mut hh_iree_call_t);
    pub fn hh_iree_call_argument_count(call: *const hh_iree_call_t) -> usize;
    pub fn hh_iree_call_argument_kind(call: *const hh_iree_call_t, index: usize) -> i32;
    pub fn hh_iree_call_result_count(call: *const hh_iree_call_t) -> usize;
    pub fn hh_iree_call_result_kind(call: *const hh_iree_call_t, index: usize) -> i32;
    pub fn hh_iree_call_set_buffer(
        call: *mut hh_iree_call_t,
        index: usize,
        buffer: *mut hh_iree_buffer_t,
    ) -> Failure;
    pub fn hh_iree_call_set_i32(call: *mut hh_iree_call_t, index: usize, value: i32) -> Failure;
    pub fn hh_iree_call_set_i64(call: *mut hh_iree_call_t, index: usize, value: i64) -> Failure;
    pub fn hh_iree_call_set_f32(call: *mut hh_iree_call_t, index: usize, value: f32) -> Failure;
    pub fn hh_iree_call_clear(call: *mut hh_iree_call_t);
    pub fn hh_iree_call_invoke(call: *mut hh_iree_call_t) -> Failure;
    pub fn hh_iree_call_result_buffer(
        call: *mut hh_iree_call_t,
        index: usize,
        out_buffer: *mut *mut hh_iree_buffer_t,
    ) -> Failure;
    pub fn hh_iree_call_result_i32(
        call: *mut hh_iree_call_t,
        index: usize,
        out_value: *mut i32,
    ) -> Failure;
    pub fn hh_iree_call_result_i64(
        call: *mut hh_iree_call_t,
        index: usize,
        out_value: *mut i64,
    ) -> Failure;
    pub fn hh_iree_call_result_f32(
        call: *mut hh_iree_call_t,
        index: usize,
        out_value: *mut f32,
    ) -> Failure;
    pub fn hh_iree_call_drop_results(call: *mut hh_iree_call_t);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::size_of;

    #[test]
    fn layout() {
        let mine = [
            size_of::<hh_iree_runtime_options_t>(),
            size_of::<hh_iree_device_info_t>(),
            size_of::<hh_iree_device_options_t>(),
            size_of::<hh_iree_memory_stats_t>(),
            size_of::<hh_iree_upload_t>(),
            size_of::<hh_iree_module_t>(),
            size_of::<hh_iree_parameter_t>(),
            size_of::<hh_iree_program_options_t>(),
        ];
        let mut theirs = [0; 32];
        // SAFETY: the pointer and the capacity are those of one array.
        let count = unsafe { hh_iree_abi_sizes(theirs.as_mut_ptr(), theirs.len()) };
        assert_eq!(mine, theirs[..count]);
        // SAFETY: takes nothing and cannot fail.
        assert_eq!(unsafe { hh_iree_abi_version() }, HH_IREE_ABI_VERSION);
    }
}
