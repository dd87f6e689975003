//! UCX, which requires a device file: a preloaded library shows it one.

use super::{Libraries, free_port, has};

/// Returns the path of that library, which is built beside this one.
fn preload() -> String {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("liburnic_preload.so").display().to_string()
}

#[test]
fn ucx_measures_its_transport_rc_verbs() {
    if !has("ucx_measures_its_transport_rc_verbs", &["ucx_perftest"]) {
        return;
    }
    let (libraries, preload) = (Libraries::new(), preload());
    let variables = [("LD_PRELOAD", &*preload)];
    for test in ["am_lat", "put_bw", "put_bw -s 100000 -D zcopy", "get -D bcopy", "add_lat"] {
        let port = free_port();
        let line = format!("ucx_perftest -p {port} -d urnic0:1 -x rc_verbs -n 300 -w 30 -t {test}");
        let server = libraries.start_with(&line, false, &variables).listens(port);
        let said = libraries.start_with(&format!("{line} 127.0.0.1"), false, &variables).finish();
        let server_said = server.finish();
        assert!(said.contains("Final:"), "{test}: {said}");
        assert!(!(said + &server_said).contains("ERROR"), "{test}: {server_said}");
    }
}

/// Without that library, UCX uses other transports, as with any device that has no file.
#[test]
fn ucx_needs_the_device_file() {
    if !has("ucx_needs_the_device_file", &["ucx_info"]) {
        return;
    }
    let (libraries, preload) = (Libraries::new(), preload());
    let has_device = |variables: &[(&str, &str)]| {
        let said = libraries.start_with("ucx_info -d", false, variables).finish();
        said.contains("urnic0:1")
    };
    assert!(!has_device(&[]), "if UCX takes the device without, the library is needed no more");
    assert!(has_device(&[("LD_PRELOAD", &*preload)]));
}
