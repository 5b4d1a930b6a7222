//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Threads of the library may end after the last object was freed; `dlclose` must not take their code away.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Until version 1, a new minor version may break programs, as with crates.
    let [major, minor] = ["MAJOR", "MINOR"]
        .map(|part| std::env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default());
    let version = if major == "0" { format!("0.{minor}") } else { major };
    println!("cargo::rustc-env=BUSBAR_SONAME=libbusbar.so.{version}");
    // cargo-c gives the library its name for the linker of other programs itself.
    if std::env::var_os("CARGO_FEATURE_CAPI").is_none() {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbusbar.so.{version}");
    }
}
