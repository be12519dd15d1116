//! A join token becomes a certificate: both ends of the one call that needs none.
//!
//! The server has a listener of its own, so that no caller without a certificate of the run reaches
//! the services of the farm. The client trusts the authority that its token names and no other.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use furrow_identity::{Identity, JoinToken, PeerRole};
use tokio::net::TcpListener;
use tonic::transport::{Certificate, ClientTlsConfig, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use crate::handshake::HANDSHAKE_TIMEOUT;
use crate::link::{LinkTimeouts, accept, endpoint, with_deadline};
use crate::v1;
use crate::v1::enrolment_service_client::EnrolmentServiceClient;
use crate::v1::enrolment_service_server::{EnrolmentService, EnrolmentServiceServer};

/// A secret, a public key and their framing; a certificate.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

/// Strangers reach this server: they get no more of its memory than they need.
const WINDOW_BYTES: u32 = 64 << 10;

const CALLS_PER_CONNECTION_MAX: u32 = 4;

/// Longest time that a call may take.
const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// Decides who gets a certificate: from a token's secret and a public key to a certificate in PEM.
pub type Enroller = dyn Fn(&[u8], &[u8]) -> Result<String, Status> + Send + Sync;

struct Enrolment(Arc<Enroller>);

#[tonic::async_trait]
impl EnrolmentService for Enrolment {
    async fn enrol(&self, request: Request<v1::EnrolRequest>) -> Result<Response<v1::EnrolResponse>, Status> {
        let v1::EnrolRequest { secret, public_key } = request.into_inner();
        let enroller = self.0.clone();
        let issuing = tokio::task::spawn_blocking(move || enroller(&secret, &public_key));
        let certificate_pem = issuing.await.map_err(|why| Status::internal(why.to_string()))??;
        Ok(Response::new(v1::EnrolResponse { certificate_pem }))
    }
}

/// Serves enrolment, as the run's coordinator would identify itself, until `stop` resolves.
pub async fn serve_enrolment(
    listener: TcpListener,
    identity: &Identity,
    enroller: Arc<Enroller>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let service = EnrolmentServiceServer::new(Enrolment(enroller))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let own = tonic::transport::Identity::from_pem(identity.certificate_pem(), identity.key_pem());
    let tls = ServerTlsConfig::new().identity(own).timeout(HANDSHAKE_TIMEOUT);
    Server::builder()
        .timeout(CALL_DEADLINE)
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
        .http2_keepalive_interval(Some(LinkTimeouts::default().keepalive))
        .tls_config(tls)?
        .add_service(service)
        .serve_with_incoming_shutdown(accept(listener), stop)
        .await
}

/// Exchanges a token for the certificate of this public key, in PEM.
pub async fn enrol(token: &JoinToken, address: &str, public_key: &[u8]) -> Result<String, Status> {
    let unusable = |why: tonic::transport::Error| {
        Status::invalid_argument(format!("{address:?} is no address to connect to ({why}); use host:port"))
    };
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(token.authority_pem()))
        .domain_name(PeerRole::Coordinator.server_name());
    let endpoint = endpoint(&format!("https://{address}"), LinkTimeouts::default()).map_err(unusable)?;
    let channel = endpoint.tls_config(tls).map_err(unusable)?.connect_lazy();
    let mut client = EnrolmentServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let request =
        v1::EnrolRequest { secret: token.secret().to_vec().into(), public_key: public_key.to_vec().into() };
    Ok(with_deadline(CALL_DEADLINE, client.enrol(request)).await?.into_inner().certificate_pem)
}
