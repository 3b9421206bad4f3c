//! Pure: Kubernetes versions that tenants can choose, and the images of their control planes.

use std::str::FromStr;

use crate::recipes::go;
use crate::versions::KUBERNETES_VERSION;

/// Programs of a control plane.
pub const PROGRAMS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Kubernetes versions of a stack's catalogue: the host's own, and the requested others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Releases(Vec<&'static str>);

impl Releases {
    /// All versions, the host's own first.
    pub fn all(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(KUBERNETES_VERSION).chain(self.0.iter().copied())
    }

    /// Recipes that build the versions other than the host's own.
    pub fn recipes(&self) -> impl Iterator<Item = &'static go::Recipe> {
        self.0.iter().filter_map(|release| go::find_control_plane(release))
    }
}

impl FromStr for Releases {
    type Err = String;

    /// Parses versions separated by spaces, such as `1.35.5 1.35.4`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut others = Vec::new();
        for name in text.split_whitespace().filter(|name| *name != KUBERNETES_VERSION) {
            let Some(release) = go::other_releases().find(|release| *release == name) else {
                let known: Vec<_> = go::other_releases().chain([KUBERNETES_VERSION]).collect();
                return Err(format!(
                    "unknown Kubernetes version {name:?}: choose from {}",
                    known.join(", ")
                ));
            };
            if !others.contains(&release) {
                others.push(release);
            }
        }
        Ok(Self(others))
    }
}

/// Image name of a program.
pub fn to_image(program: &str, release: &str) -> String {
    format!("registry.k8s.io/{program}:v{release}")
}

/// File name of a program in `.dev/bin`. Only names of the host's own version have no version
/// suffix.
pub fn to_binary(program: &str, release: &str) -> String {
    if release == KUBERNETES_VERSION {
        program.to_owned()
    } else {
        format!("{program}-{release}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_s_own_release_is_always_there_and_once() {
        for text in ["", "1.35.4", " 1.35.4 1.35.4 "] {
            let releases: Releases = text.parse().unwrap();
            assert_eq!(releases.all().collect::<Vec<_>>(), ["1.35.4"], "{text:?}");
        }
        for text in ["1.35.5", "1.35.5 1.35.4", "1.35.4 1.35.5 1.35.5"] {
            let releases: Releases = text.parse().unwrap();
            assert_eq!(releases.all().collect::<Vec<_>>(), ["1.35.4", "1.35.5"], "{text:?}");
        }
        assert_eq!(
            "1.35.5 1.2.3".parse::<Releases>().unwrap_err(),
            "unknown Kubernetes version \"1.2.3\": choose from 1.35.5, 1.35.4"
        );
    }

    #[test]
    fn a_recipe_makes_the_file_of_every_program() {
        let releases: Releases = "1.35.5".parse().unwrap();
        let made: Vec<&str> = releases
            .recipes()
            .flat_map(|recipe| recipe.binaries)
            .map(|(_, binary)| *binary)
            .collect();
        let mut expected = PROGRAMS.map(|program| to_binary(program, "1.35.5")).to_vec();
        // Workers need the kubelet. Images of control planes need the other programs.
        expected.push(to_binary("kubelet", "1.35.5"));
        assert_eq!(made, expected);
    }
}
