# Image of deploy/docker/Dockerfile with an ssh server, for jobs on several containers: horovodrun -H worker1:2,worker2:2 python train.py
#
#   docker build -f deploy/docker/ssh.Dockerfile -t localhost/horovod:cpu-ssh .
#
# Nothing in it runs as root. Keys are not part of the image: deploy/docker/make-keys or Kubeflow's MPI operator creates them, and containers
# mount them.
ARG IMAGE=localhost/horovod:cpu
# hadolint ignore=DL3006
FROM ${IMAGE}
USER 0:0
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openssh-client openssh-server \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
COPY deploy/docker/sshd_config /etc/horovod/sshd_config
COPY deploy/docker/ssh_config /etc/ssh/ssh_config.d/horovod.conf
COPY deploy/docker/start-sshd deploy/docker/known-host /usr/local/bin/
USER 1000:1000
EXPOSE 2222
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/2222 && read -r -t 3 -u 3 line && [[ $line == SSH-* ]]"]
CMD ["start-sshd"]
