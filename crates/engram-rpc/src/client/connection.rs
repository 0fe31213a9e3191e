//! Open connections to a server.

use std::sync::Arc;

use engram_core::{Error, Result};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::target::Target;
use super::transport::ReceivedBytes;
use crate::check_token;
use crate::pb::engram_client::EngramClient;

/// The generated client; it sends the token with every call.
pub(crate) type GrpcClient = EngramClient<InterceptedService<Channel, BearerToken>>;

/// Adds the token to a call, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct BearerToken(Option<MetadataValue<Ascii>>);

impl BearerToken {
    /// Checks a token.
    pub(super) fn new(token: Option<&str>) -> Result<Self> {
        let Some(token) = token else {
            return Ok(Self(None));
        };
        check_token(token)?;
        let value = format!("Bearer {token}").parse();
        let mut value: MetadataValue<Ascii> =
            value.map_err(|_| Error::InvalidArgument("`token` cannot be sent".into()))?;
        value.set_sensitive(true);
        Ok(Self(Some(value)))
    }
}

impl Interceptor for BearerToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// An open connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) client: GrpcClient,
    pub(crate) received_bytes: Arc<ReceivedBytes>,
    pub(crate) target: Arc<Target>,
}
