//! Where the parameters of a `LeaderApiCluster` come from: what is given, and else the variables that a platform
//! with a Leader Election API sets for its workloads.

use serde_json::Value;

use super::{ConfigError, Fault, Kind, Section};
use crate::backend::leader_api::{Identity, check_url, resource_name};
use crate::lease::{ElectionName, InstanceId};

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

const ADDRESS: &str = "KELVIN_LEADER_API_ADDRESS";
const PORT: &str = "KELVIN_LEADER_API_PORT";
const CLUSTER: &str = "KELVIN_CLUSTER_NAME";
const WORKLOAD: &str = "KELVIN_WORKLOAD_NAME";
const APP: &str = "KELVIN_APP_NAME";

/// What takes the place of parameters that every other type has.
pub(super) const INSTEAD: [(&str, &str); 5] = [
    (
        "leaseName",
        "it is called resource with a Leader Election API",
    ),
    (
        "instanceId",
        "it is called identity with a Leader Election API",
    ),
    ("leaseDuration", "the server says how long a lease lasts"),
    (
        "renewInterval",
        "it is a third of the lease, which the server says",
    ),
    (
        "leadLimit",
        "it follows from the lease, which the server says",
    ),
];

pub(super) struct Settings {
    pub kind: Kind,
    pub resource: ElectionName,
    /// `None`: a default that is unique per process.
    pub identity: Option<InstanceId>,
}

impl Settings {
    pub fn read(section: &Section, env: Env) -> Result<Self, ConfigError> {
        for (parameter, why) in INSTEAD {
            if section.values.contains_key(parameter) {
                return Err(ConfigError::new(format!(
                    "{}.{parameter} must be left out: {why}",
                    section.place
                )));
            }
        }
        let url = section.string("url", "a URL like \"http://<host>[:<port>]\"")?;
        let resource = section.string("resource", "a resource name like \"krn:app:my-app\"")?;
        let identity = section.string("identity", "a name that is unique per process")?;
        let token = match section.values.get("token") {
            None => None,
            Some(Value::String(token)) => Some(token.clone()),
            // It is not shown.
            Some(_) => {
                let place = &section.place;
                return Err(ConfigError::new(format!("{place}.token must be a string")));
            }
        };
        let mut environment = Environment::new(env);
        // Whoever names a server of its own need not be on that platform.
        let (own_server, on_platform) = (url.is_some(), environment.has_any(&[CLUSTER, WORKLOAD]));
        let url = url.or_else(|| environment.url());
        let identity = match identity {
            None if own_server && !on_platform => None,
            identity => identity.or_else(|| environment.identity()),
        };
        let resource = resource.or_else(|| environment.resource());
        let fault = if own_server {
            Fault::Text
        } else {
            Fault::Unset
        };
        if let Some(message) = environment.error(&section.place) {
            return Err(ConfigError { message, fault });
        }
        let (Some(url), Some(resource)) = (url, resource) else {
            unreachable!("the environment lacks nothing");
        };
        let identity = identity.map(|identity| {
            InstanceId::new(&identity)
                .map_err(|bad| section.bad("identity", &identity.into(), &bad.0))
        });
        Ok(Self {
            resource: ElectionName::new(&resource)
                .map_err(|bad| section.bad("resource", &resource.into(), &bad.0))?,
            identity: identity.transpose()?,
            kind: Kind::LeaderApi { url, token },
        })
    }
}

fn is_port(text: &str) -> bool {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits && text.parse::<u16>().is_ok_and(|port| port > 0)
}

/// What it says, and what it lacks.
struct Environment<'a> {
    env: Env<'a>,
    missing: Vec<&'static str>,
    invalid: Vec<String>,
}

impl<'a> Environment<'a> {
    fn new(env: Env<'a>) -> Self {
        Self {
            env,
            missing: Vec::new(),
            invalid: Vec::new(),
        }
    }

    fn has_any(&self, names: &[&str]) -> bool {
        let is_set = |name: &&str| (self.env)(name).is_some_and(|value| !value.is_empty());
        names.iter().any(is_set)
    }

    fn get(&mut self, name: &'static str) -> Option<String> {
        let value = (self.env)(name).filter(|value| !value.is_empty());
        if value.is_none() {
            self.missing.push(name);
        }
        value
    }

    fn url(&mut self) -> Option<String> {
        let (address, port) = (self.get(ADDRESS), self.get(PORT));
        if let Some(port) = &port
            && !is_port(port)
        {
            self.invalid
                .push(format!("{PORT} must be a port, 1 to 65535, not {port:?}"));
        }
        let address = address?;
        let bare_ipv6 = address.contains(':') && !address.starts_with('[');
        let base = if bare_ipv6 {
            format!("http://[{address}]")
        } else {
            format!("http://{address}")
        };
        // A URL may have more than a host.
        if address.contains(['/', '?', '#', '@']) || check_url(&format!("{base}:80")).is_err() {
            // Not shown: it may hold a password.
            self.invalid.push(format!(
                "{ADDRESS} must be a host's name or address, without a port"
            ));
        }
        Some(format!("{base}:{}", port?))
    }

    fn identity(&mut self) -> Option<String> {
        let (cluster, workload) = (self.get(CLUSTER), self.get(WORKLOAD));
        let (cluster, workload) = (&*cluster?, &*workload?);
        let identity = Identity { cluster, workload }.to_string();
        if let Err(bad) = InstanceId::new(&identity) {
            self.invalid.push(format!(
                "{CLUSTER} and {WORKLOAD} make the identity {identity:?}, which must {}",
                bad.0
            ));
        }
        Some(identity)
    }

    fn resource(&mut self) -> Option<String> {
        let resource = format!("krn:app:{}", self.get(APP)?);
        if let Err(bad) = resource_name(&resource) {
            self.invalid.push(format!(
                "{APP} makes the resource {resource:?}, which must {}",
                bad.0
            ));
        }
        Some(resource)
    }

    fn error(self, place: &str) -> Option<String> {
        let mut faults = self.invalid;
        if !self.missing.is_empty() {
            faults.push(format!(
                "the environment has no {}",
                self.missing.join(", ")
            ));
        }
        if faults.is_empty() {
            return None;
        }
        Some(format!(
            "{place}: what is not given as url, identity or resource comes from the environment, and {}",
            faults.join("; ")
        ))
    }
}
