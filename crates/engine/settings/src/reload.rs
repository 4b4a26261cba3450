//! Finds configuration changes that a running engine cannot apply.

use super::{Config, ControlListen, Log};

impl Config {
    /// Returns the sections and keys that differ in `other` and take effect only after a restart.
    /// All of `[tls]`, `client_ca` and `client_crl` of `[control]`, and `log.filter` need no
    /// restart.
    pub fn needs_restart_for(&self, other: &Self) -> Vec<&'static str> {
        // The pattern lists every field, so that a new section must be handled here.
        let Self {
            listen,
            http,
            issuers,
            admin,
            control,
            access,
            tls: _,
            state,
            postgres,
            kek,
            kek_providers,
            kek_needs_root,
            kek_probe_interval_s,
            crypto,
            evervault,
            network,
            schedule,
            limits,
            audit,
            sweep,
            traces,
            log: Log { format, filter: _ },
        } = self;
        let fixed = |control: &Option<ControlListen>| {
            control.clone().map(|control| ControlListen {
                client_ca: None,
                client_crl: None,
                ..control
            })
        };
        let same = [
            ("listen", *listen == other.listen),
            ("http", *http == other.http),
            ("issuer", *issuers == other.issuers),
            ("admin", *admin == other.admin),
            ("control", fixed(control) == fixed(&other.control)),
            ("access", *access == other.access),
            ("state", *state == other.state),
            ("postgres", *postgres == other.postgres),
            (
                "kek",
                *kek == other.kek
                    && *kek_providers == other.kek_providers
                    && *kek_needs_root == other.kek_needs_root
                    && *kek_probe_interval_s == other.kek_probe_interval_s,
            ),
            ("crypto", *crypto == other.crypto),
            ("evervault", *evervault == other.evervault),
            ("network", *network == other.network),
            ("schedule", *schedule == other.schedule),
            ("limits", *limits == other.limits),
            ("audit", *audit == other.audit),
            ("sweep", *sweep == other.sweep),
            ("traces", *traces == other.traces),
            ("log.format", *format == other.log.format),
        ];
        same.into_iter()
            .filter(|(_, same)| !same)
            .map(|(name, _)| name)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::LogFormat;
    use sealwire_access::PrincipalKind;

    #[test]
    fn changes_that_need_a_restart_are_named() {
        type Change = fn(&mut Config);
        fn control(config: &mut Config) -> &mut ControlListen {
            config.control.as_mut().unwrap()
        }
        let mut config = Config::defaults(Path::new("/etc/sealwire"));
        let address = ([127, 0, 0, 1], 7445).into();
        config.control = Some(ControlListen {
            address,
            client_ca: None,
            client_crl: None,
            principals: Vec::new(),
        });
        let cases: &[(Change, &[&str])] = &[
            (|_| (), &[]),
            (|c| c.tls.client_crl = Some("/elsewhere".into()), &[]),
            (|c| c.tls.watch_s = 60, &[]),
            (|c| control(c).client_ca = Some("/elsewhere".into()), &[]),
            (|c| c.log.filter = "debug".into(), &[]),
            (|c| c.log.format = LogFormat::Json, &["log.format"]),
            (|c| c.control = None, &["control"]),
            (
                |c| {
                    control(c)
                        .principals
                        .push((PrincipalKind::Dns, "operator".into()))
                },
                &["control"],
            ),
            (|c| c.access.stale_s = 60, &["access"]),
            (|c| c.listen.address = None, &["listen"]),
            (
                |c| c.http.address = Some(([127, 0, 0, 1], 1).into()),
                &["http"],
            ),
            (|c| c.audit.sync = true, &["audit"]),
            (|c| c.traces.sample_ppm = 1, &["traces"]),
            (
                |c| (c.limits.depth_max, c.crypto.threads) = (9, 9),
                &["crypto", "limits"],
            ),
        ];
        for (change, names) in cases {
            let mut other = config.clone();
            change(&mut other);
            assert_eq!(config.needs_restart_for(&other), *names);
        }
    }
}
