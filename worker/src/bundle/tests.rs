use super::*;

const API: &str = "v1.35.4";
const NONE: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn lines() -> Vec<String> {
    PROGRAMS.iter().map(|name| format!("{NONE}  {name}")).collect()
}

/// A bundle whose programs are all empty, but for one.
fn bundle(dir: &Path) -> PathBuf {
    let bundle = dir.join("bundle");
    fs::create_dir_all(bundle.join("images")).unwrap();
    for name in PROGRAMS {
        fs::write(bundle.join(name), "").unwrap();
    }
    fs::write(bundle.join("runc"), "abc").unwrap();
    fs::write(bundle.join("images/pause.tar"), "").unwrap();
    let mut lines = lines();
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    lines[4] = format!("{abc} *./runc");
    lines.push(format!("{NONE}  images/pause.tar"));
    fs::write(bundle.join(SUMS), lines.join("\n")).unwrap();
    bundle
}

fn layout(dir: &Path) -> Layout {
    let layout = Layout::new(&dir.join("w")).unwrap();
    for folder in layout.folders() {
        fs::create_dir_all(folder).unwrap();
    }
    layout
}

#[test]
fn names_that_leave_the_folder_are_refused() {
    for line in [
        "",
        "x  kubelet",
        NONE,
        &format!("{NONE}  "),
        &format!("{NONE}kubelet"),
        &format!("{NONE}  ../kubelet"),
        &format!("{NONE}  /kubelet"),
        &format!("{NONE}  images/../kubelet"),
        &format!("{NONE}  images/"),
        &format!("{NONE}  other/kubelet"),
        &format!("{NONE}  .hidden"),
        &format!("{NONE}  a b"),
        &format!("{}  kubelet", &NONE[2..]),
    ] {
        let text = [&lines()[..], &[line.to_owned()]].concat().join("\n") + "\n";
        let refused = parse_sums(&text);
        assert!(matches!(refused, Err(BundleError::Line(10))), "{line:?}: {refused:?}");
    }
}

#[test]
fn every_program_is_named_once() {
    assert_eq!(parse_sums(&lines().join("\n")).unwrap().len(), PROGRAMS.len());
    let without = parse_sums(&lines()[1..].join("\n"));
    assert!(matches!(without, Err(BundleError::Missing("kubelet"))));
    let twice = [&lines()[..], &lines()[..1]].concat().join("\n");
    assert!(matches!(parse_sums(&twice), Err(BundleError::Twice(name)) if name == "kubelet"));
    let many: Vec<_> = (0..=FILES_MAX).map(|count| format!("{NONE}  file-{count}")).collect();
    assert!(matches!(parse_sums(&many.join("\n")), Err(BundleError::Long)));
}

#[test]
fn listed_files_are_installed() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let (bundle, layout) = (bundle(dir.path()), layout(dir.path()));
    install(&bundle, &layout, API.parse().unwrap()).unwrap();
    let runc = layout.binary("runc");
    assert_eq!(fs::read_to_string(&runc).unwrap(), "abc");
    assert_eq!(fs::metadata(&runc).unwrap().permissions().mode() & 0o777, 0o755);
    assert!(layout.images().join("pause.tar").exists());

    // Intact files are not copied again, so the bundle need not exist. A corrupt file is.
    fs::write(bundle.join("runc"), "abd").unwrap();
    install(&bundle, &layout, API.parse().unwrap()).unwrap();
    fs::write(&runc, "abX").unwrap();
    let refused = install(&bundle, &layout, API.parse().unwrap()).unwrap_err();
    assert!(matches!(refused, BundleError::Digest(name) if name == "runc"));
    let files: Vec<_> = fs::read_dir(layout.bin())
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    assert_eq!(files.len(), PROGRAMS.len(), "nothing half is left: {files:?}");
}

#[test]
fn a_missing_bundle_is_not_a_corrupt_one() {
    let dir = tempfile::tempdir().unwrap();
    let whole = bundle(dir.path());
    assert_eq!(check_files(&whole).unwrap(), PROGRAMS.len() + 1);
    for folder in [dir.path().to_owned(), dir.path().join("nowhere")] {
        let missing = check_files(&folder).unwrap_err();
        assert!(
            matches!(&missing, BundleError::Absent(path) if *path == folder),
            "{missing:?}"
        );
        assert!(missing.hint().contains("--bundle"), "{}", missing.hint());
    }
    let runc = whole.join("runc");
    fs::remove_file(&runc).unwrap();
    let damaged = check_files(&whole).unwrap_err();
    assert!(
        matches!(&damaged, BundleError::File { path, .. } if *path == runc),
        "{damaged:?}"
    );
    assert!(damaged.hint().contains("sha256sum -c"), "{}", damaged.hint());
}

#[test]
fn a_file_that_others_change_is_refused() {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    let dir = tempfile::tempdir().unwrap();
    let bundle = bundle(dir.path());
    let mut layouts = 0;
    let mut refused = |rule: &str, expected: Option<&Path>| {
        layouts += 1;
        let layout = layout(&dir.path().join(layouts.to_string()));
        let found = install(&bundle, &layout, API.parse().unwrap());
        match (found, expected) {
            (Ok(()), None) => {}
            (Err(BundleError::Writable(path)), Some(expected)) => assert_eq!(path, expected, "{rule}"),
            (found, _) => panic!("{rule}: {found:?}"),
        }
    };
    for name in [SUMS, "runc"] {
        let file = bundle.join(name);
        for (mode, good) in [(0o644, true), (0o664, false), (0o646, false), (0o755, true)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            refused(&format!("{name} {mode:o}"), (!good).then_some(&file));
        }
        if rustix::process::geteuid().is_root() {
            chown(&file, Some(1234), None).unwrap();
            refused(name, Some(&file));
            chown(&file, Some(0), None).unwrap();
        }
    }
    let runc = bundle.join("runc");
    fs::rename(&runc, dir.path().join("elsewhere")).unwrap();
    symlink(dir.path().join("elsewhere"), &runc).unwrap();
    refused("a link to a program", None);
    fs::remove_file(&runc).unwrap();
    fs::create_dir(&runc).unwrap();
    refused("a folder", Some(&runc));
    let sums = bundle.join(SUMS);
    fs::rename(&sums, dir.path().join("sums")).unwrap();
    symlink(dir.path().join("sums"), &sums).unwrap();
    assert!(
        matches!(read_sums(&bundle), Err(BundleError::File { .. })),
        "a link to the list"
    );
}

#[test]
fn the_kubelet_of_the_apis_version_is_installed() {
    let dir = tempfile::tempdir().unwrap();
    let (bundle, layout) = (bundle(dir.path()), layout(dir.path()));
    let x = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";
    fs::write(bundle.join("kubelet-v1.35.5"), "x").unwrap();
    let sums = format!(
        "{}\n{x}  kubelet-v1.35.5\n",
        fs::read_to_string(bundle.join(SUMS)).unwrap()
    );
    fs::write(bundle.join(SUMS), sums).unwrap();
    for (api, kubelet) in [("v1.35.5", "x"), ("v1.35.4", "")] {
        install(&bundle, &layout, api.parse().unwrap()).unwrap();
        assert_eq!(fs::read_to_string(layout.binary("kubelet")).unwrap(), kubelet, "{api}");
    }
    assert_eq!(fs::read_dir(layout.bin()).unwrap().count(), PROGRAMS.len());
}
