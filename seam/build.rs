//! Tells the crate what target it is built for; plugins state it in their header.

fn main() {
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo:rustc-env=HALFHITCH_TARGET={target}");
    println!("cargo:rerun-if-changed=build.rs");
}
