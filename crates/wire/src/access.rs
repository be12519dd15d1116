//! Which role may make which call: one table for all services of a run.

use std::sync::Arc;

use furrow_identity::{Peer, PeerRole};
use tonic::Status;

use PeerRole::{Client, Coordinator, Env, Observer, Policy};

/// Every method, by the path of its requests, and the roles that may call it.
const ACCESS: &[(&str, &[PeerRole])] = &[
    ("/furrow.v1.CoordinatorService/Lease", &[Env]),
    ("/furrow.v1.CoordinatorService/Renew", &[Env]),
    ("/furrow.v1.CoordinatorService/RecordStep", &[Env]),
    ("/furrow.v1.CoordinatorService/Finish", &[Env]),
    ("/furrow.v1.CoordinatorService/Progress", &[Client, Observer]),
    ("/furrow.v1.CoordinatorService/Running", &[Client, Observer]),
    ("/furrow.v1.CoordinatorService/LastStep", &[Client, Observer]),
    ("/furrow.v1.CoordinatorService/ShowFirst", &[Env]),
    ("/furrow.v1.CoordinatorService/Publish", &[Client]),
    ("/furrow.v1.CoordinatorService/ReportDiscarded", &[Client]),
    ("/furrow.v1.CoordinatorService/Weights", &[Client, Observer]),
    ("/furrow.v1.CoordinatorService/Drain", &[Client]),
    ("/furrow.v1.PolicyService/Session", &[Env]),
    ("/furrow.v1.RegistrationService/Register", &[Env, Policy]),
    ("/furrow.v1.RegistrationService/Heartbeat", &[Env, Policy]),
    ("/furrow.v1.RegistrationService/Leave", &[Env, Policy]),
    ("/grpc.health.v1.Health/Check", EVERY_ROLE),
    ("/grpc.health.v1.Health/Watch", EVERY_ROLE),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", EVERY_ROLE),
];

const EVERY_ROLE: &[PeerRole] = &[Coordinator, Policy, Env, Client, Observer];

/// Characters of a method's path in a refusal.
const PATH_CHARS: usize = 100;

/// Refuses a call that the peer's role may not make.
pub(crate) fn permit(peer: &Peer, path: &str) -> Result<(), Status> {
    let roles = ACCESS.iter().find(|(method, _)| *method == path).map_or(&[][..], |(_, roles)| roles);
    if roles.contains(&peer.role) {
        return Ok(());
    }
    let path: String = path.chars().take(PATH_CHARS).collect();
    let role = peer.role;
    let name = &peer.name;
    let allowed = match roles {
        [] => "it is no method of a run".to_owned(),
        roles => {
            let names: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
            format!("allowed roles: {}", names.join(", "))
        }
    };
    Err(Status::permission_denied(format!("{name}, whose role is {role}, may not call {path}; {allowed}")))
}

/// Who makes a call, for services that compare it with what the call names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller(Option<Arc<Peer>>);

impl Caller {
    /// The caller of a request, as the server's layer identified it. On a server without identities
    /// every caller is unknown and may name any worker.
    pub fn of<T>(request: &tonic::Request<T>) -> Self {
        request.extensions().get::<Self>().cloned().unwrap_or_default()
    }

    /// Whom the certificate names, if the server identifies its callers.
    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.0.as_deref()
    }

    /// A caller whose certificate names this peer.
    pub fn identified(peer: Peer) -> Self {
        Self(Some(Arc::new(peer)))
    }

    /// Whether the caller is, or may be, of this role.
    pub fn may_be(&self, role: PeerRole) -> bool {
        self.0.as_ref().is_none_or(|peer| peer.role == role)
    }

    /// Whether the caller's certificate covers a worker of this name.
    pub fn covers(&self, worker: &str) -> bool {
        self.0.as_ref().is_none_or(|peer| peer.covers(worker))
    }

    /// Refuses a call in the name of a worker that the caller's certificate does not cover.
    pub fn check_worker(&self, worker: &str) -> Result<(), Status> {
        match &self.0 {
            Some(peer) if !peer.covers(worker) => {
                let worker: String = worker.chars().take(PATH_CHARS).collect();
                Err(Status::permission_denied(format!(
                    "the certificate is of {peer}, so it cannot act as worker {worker:?}; use the name {} or one \
                     that continues it after a dot",
                    peer.name
                )))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a call that names another role than the certificate.
    pub fn check_role(&self, role: PeerRole) -> Result<(), Status> {
        match &self.0 {
            Some(peer) if peer.role != role => Err(Status::permission_denied(format!(
                "the certificate is of {peer}, so it cannot register as {role}"
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    fn peer(role: PeerRole) -> Peer {
        Peer::of_run(furrow_rollout::Id::new("r").unwrap(), role, "x")
    }

    #[test]
    fn the_table_has_every_method_of_the_protocol_and_no_other() {
        let set = FileDescriptorSet::decode(crate::v1::DESCRIPTORS).unwrap();
        let mut methods = BTreeSet::new();
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    methods.insert(format!("/{}.{}/{}", file.package(), service.name(), method.name()));
                }
            }
        }
        assert!(methods.len() >= 16, "{methods:?}");
        // It has a listener of its own, without this layer, for callers without a certificate.
        assert!(methods.remove("/furrow.v1.EnrolmentService/Enrol"));
        let own =
            ACCESS.iter().map(|(path, _)| (*path).to_owned()).filter(|path| path.starts_with("/furrow."));
        assert_eq!(own.collect::<BTreeSet<_>>(), methods, "ACCESS (left) and proto/ (right) differ");
    }

    #[test]
    fn no_method_is_listed_twice_or_open_to_nobody() {
        let paths: BTreeSet<&str> = ACCESS.iter().map(|(path, _)| *path).collect();
        assert_eq!(paths.len(), ACCESS.len());
        assert!(ACCESS.iter().all(|(_, roles)| !roles.is_empty()));
        assert_eq!(EVERY_ROLE, PeerRole::ALL);
    }

    /// The other half of the table, written down a second time: what must stay closed.
    #[test]
    fn no_role_may_do_the_work_of_another() {
        let coordinator = "/furrow.v1.CoordinatorService/";
        let closed: &[(PeerRole, &[&str])] = &[
            (
                Observer,
                &[
                    "Lease",
                    "Renew",
                    "RecordStep",
                    "Finish",
                    "ShowFirst",
                    "Publish",
                    "ReportDiscarded",
                    "Drain",
                ],
            ),
            (Env, &["Progress", "Running", "LastStep", "Publish", "ReportDiscarded", "Weights", "Drain"]),
            (Policy, &["Lease", "Renew", "RecordStep", "Finish", "Publish", "Drain", "Running", "LastStep"]),
            (Client, &["Lease", "Renew", "RecordStep", "Finish", "ShowFirst"]),
            (Coordinator, &["Lease", "Finish", "Publish", "Drain", "Progress"]),
        ];
        for (role, methods) in closed {
            for method in *methods {
                assert!(permit(&peer(*role), &format!("{coordinator}{method}")).is_err(), "{role} {method}");
            }
        }
        for role in [Coordinator, Policy, Client, Observer] {
            assert!(permit(&peer(role), "/furrow.v1.PolicyService/Session").is_err(), "{role}");
        }
        for role in [Coordinator, Client, Observer] {
            assert!(permit(&peer(role), "/furrow.v1.RegistrationService/Register").is_err(), "{role}");
        }
    }

    #[test]
    fn a_refusal_names_role_method_and_allowed_roles() {
        let refused = permit(&peer(Env), "/furrow.v1.CoordinatorService/Running").unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        assert_eq!(
            refused.message(),
            "x, whose role is env, may not call /furrow.v1.CoordinatorService/Running; allowed roles: client, observer"
        );
        let unknown = permit(&peer(Env), "/furrow.v1.CoordinatorService/Shutdown").unwrap_err();
        assert!(unknown.message().contains("it is no method of a run"), "{unknown}");
    }

    #[test]
    fn a_caller_acts_under_its_own_name_alone() {
        let env = Caller::identified(peer(Env));
        assert!(env.check_worker("x").is_ok() && env.check_worker("x.1").is_ok());
        let refused = env.check_worker("policy-0").unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        assert!(refused.message().contains("furrow://r/env/x"), "{refused}");
        assert!(env.check_role(Env).is_ok() && env.check_role(Policy).is_err());
        assert!(env.may_be(Env) && !env.may_be(Policy));
        let unknown = Caller::default();
        assert!(unknown.check_worker("any").is_ok() && unknown.check_role(Policy).is_ok());
    }
}
