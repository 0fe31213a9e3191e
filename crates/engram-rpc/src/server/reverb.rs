//! dm-reverb's service at the address of the server: a feature of the build, `reverb`.

#[cfg(feature = "reverb")]
pub(super) use with_service::ReverbService;
#[cfg(not(feature = "reverb"))]
pub(super) use without_service::ReverbService;

#[cfg(feature = "reverb")]
mod with_service {
    use std::convert::Infallible;
    use std::sync::Arc;

    use engram_core::Result;
    use engram_engine::Engine;
    use engram_reverb::Reverb;
    use engram_reverb::pb::Uint128;
    use engram_reverb::pb::reverb_service_server::ReverbServiceServer;
    use tokio::sync::watch::Receiver;
    use tonic::body::Body;
    use tonic::codegen::http::{Request, Response};
    use tonic::codegen::{BoxFuture, Service as _};

    use crate::random_u64;

    /// The service and its methods.
    #[derive(Clone, Debug)]
    pub(in crate::server) struct ReverbService(ReverbServiceServer<Reverb>);

    impl ReverbService {
        pub(in crate::server) const MAX_MESSAGE_BYTES: usize = engram_reverb::MAX_MESSAGE_BYTES;

        /// # Errors
        /// [`engram_core::Error::Unavailable`] if the system provides no random numbers.
        pub(in crate::server) fn new(
            engine: Arc<Engine>,
            shutdown: Receiver<bool>,
        ) -> Result<Self> {
            let tables_state_id = Uint128 {
                high: random_u64()?,
                low: random_u64()?,
            };
            let reverb = Reverb::new(engine, shutdown, tables_state_id);
            Ok(Self(reverb.server()))
        }

        /// The method that a path names; `None` if the path is not of this service.
        pub(in crate::server) fn method(path: &str) -> Option<&str> {
            path.strip_prefix(engram_reverb::PATH)
        }

        pub(in crate::server) fn call(
            &mut self,
            request: Request<Body>,
        ) -> BoxFuture<Response<Body>, Infallible> {
            self.0.call(request)
        }
    }
}

#[cfg(not(feature = "reverb"))]
mod without_service {
    use std::convert::Infallible;
    use std::sync::Arc;

    use engram_core::Result;
    use engram_engine::Engine;
    use tokio::sync::watch::Receiver;
    use tonic::Status;
    use tonic::body::Body;
    use tonic::codegen::BoxFuture;
    use tonic::codegen::http::{Request, Response};

    /// No path is of this service.
    #[derive(Clone, Debug)]
    pub(in crate::server) struct ReverbService;

    impl ReverbService {
        pub(in crate::server) const MAX_MESSAGE_BYTES: usize = 0;

        #[expect(clippy::unnecessary_wraps, reason = "as with the service")]
        pub(in crate::server) fn new(_: Arc<Engine>, _: Receiver<bool>) -> Result<Self> {
            Ok(Self)
        }

        pub(in crate::server) fn method(_: &str) -> Option<&str> {
            None
        }

        #[expect(clippy::unused_self, reason = "as with the service")]
        pub(in crate::server) fn call(
            &mut self,
            _: Request<Body>,
        ) -> BoxFuture<Response<Body>, Infallible> {
            Box::pin(async {
                Ok(Status::unimplemented("built without the feature `reverb`").into_http())
            })
        }
    }
}
