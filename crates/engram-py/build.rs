//! Passes the name of the build profile on, so that benchmarks can refuse a build that is not a release.

fn main() {
    // `debug` for the profiles that inherit from `dev`.
    let release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let profile = if release { "release" } else { "dev" };
    println!("cargo::rustc-env=ENGRAM_PROFILE={profile}");
    println!("cargo::rerun-if-changed=build.rs");
}
