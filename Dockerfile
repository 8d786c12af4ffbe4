# syntax=docker/dockerfile:1
# Caddy with this module. Jobs of the embedded store are in /data.
#
#	docker build -t caddy-idempotency .
#	docker run -p 8080:8080 -v ./Caddyfile:/etc/caddy/Caddyfile:ro -v caddy-data:/data caddy-idempotency

FROM golang:1.26-bookworm AS build
WORKDIR /src
# Downloaded anew only when these change.
COPY go.mod go.sum ./
RUN go mod download
COPY xcaddy.sh ./
COPY caddymodule ./caddymodule
COPY keystore ./keystore
COPY proxy ./proxy
RUN OUTPUT=/out/caddy ./xcaddy.sh && mkdir /out/data /out/config

# No shell, and nobody to log in as.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/caddy /usr/bin/caddy
COPY --from=build --chown=nonroot:nonroot /out/data /data
COPY --from=build --chown=nonroot:nonroot /out/config /config
ENV XDG_DATA_HOME=/data XDG_CONFIG_HOME=/config
VOLUME /data
EXPOSE 80 443 443/udp
ENTRYPOINT ["/usr/bin/caddy"]
CMD ["run", "--config", "/etc/caddy/Caddyfile"]
