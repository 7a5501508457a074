//! The registration server: service `v1beta1.Registration` on `kubelet.sock`.

use std::path::PathBuf;
use std::sync::Arc;

use tonic::Status;

use super::connect::{Connector, Refusal};
use super::{check, limits};
use crate::grpc::messages::device_plugin::{Empty, RegisterRequest, path};
use crate::grpc::server::{self, Handler};
use crate::model::device::RefusalReason;

struct Registration {
    /// For the directory in which the sockets of plugins are.
    connector: Connector,
}

pub(super) fn handler(connector: Connector) -> Handler {
    let registration = Arc::new(Registration { connector });
    Arc::new(move |request| {
        let registration = Arc::clone(&registration);
        Box::pin(async move {
            if request.uri().path() != path::REGISTER {
                return server::unknown_method();
            }
            let register = |request| registration.register(request);
            server::unary(request, limits::MAX_SMALL_BYTES, register).await
        })
    })
}

impl Registration {
    /// Answers when the plugin is connected, as kubelet. The options of the request are not used:
    /// the plugin is asked for them.
    async fn register(&self, request: RegisterRequest) -> Result<Empty, Status> {
        let resource = &request.resource_name;
        let connected = match self.check(&request) {
            Ok(socket) => self.connector.connect(resource, &socket).await,
            Err(refusal) => Err(refusal),
        };
        match connected {
            Ok(_installed) => Ok(Empty {}),
            Err(refusal) => {
                self.connector.refused(resource, &refusal).await;
                // The code of an error without one, as Go's.
                Err(Status::unknown(refusal.why))
            }
        }
    }

    /// The plugin's socket.
    fn check(&self, request: &RegisterRequest) -> Result<PathBuf, Refusal> {
        check::version(&request.version)
            .map_err(|why| Refusal::new(RefusalReason::Version, why))?;
        check::resource_name(&request.resource_name)
            .map_err(|why| Refusal::new(RefusalReason::ResourceName, why))?;
        let endpoint = check::endpoint(&request.endpoint)
            .map_err(|why| Refusal::new(RefusalReason::Endpoint, why))?;
        Ok(self.connector.directory.join(endpoint))
    }
}
