#!/bin/busybox sh
# The guest's first process: makes a system of the bare kernel, runs the tests, tells how they ended
# and switches the machine off. Standard output of the tests goes to the second serial port, the
# kernel's log to the first.
set -u
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /var/lib /var/log /etc/ballast /root
/bin/busybox --install -s /bin

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
# As udev has them.
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /var/log
if grep -q cgroup_no_v1=all /proc/cmdline; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
    mount -t tmpfs tmpfs /sys/fs/cgroup
    for controller in blkio cpu cpuacct cpuset devices freezer hugetlb memory pids; do
        mkdir /sys/fs/cgroup/$controller
        mount -t cgroup -o $controller cgroup /sys/fs/cgroup/$controller
    done
    # As systemd has it; since Linux 5.11 there is nothing else.
    echo 1 > /sys/fs/cgroup/memory/memory.use_hierarchy
fi
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
mount -t securityfs securityfs /sys/kernel/security
ip link set lo up
hostname ballast-vm
printf '127.0.0.1 localhost ballast-vm\n' > /etc/hosts
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' > /etc/passwd
printf 'root:x:0:\nnogroup:x:65534:\n' > /etc/group

exec < /dev/null > /dev/ttyS1 2>&1
stty -F /dev/ttyS1 raw
read -r uptime _ < /proc/uptime
printf '@START@ %s %s\n' "$uptime" "$(uname -r)"

# A burst of OOM kills writes megabytes to the log; on an emulated port each byte costs an exit.
echo 1 > /proc/sys/kernel/printk

export PATH=/bin HOME=/root TMPDIR=/tmp TERM=dumb RUST_BACKTRACE=1 RUST_LIB_BACKTRACE=0
export BALLAST_BIN=/opt/ballast BALLAST_HOG=/opt/hog BALLAST_PLUGIN=/opt/device_plugin
export BALLAST_VM='@KERNEL@'
# For the times of tests.
export RUSTC_BOOTSTRAP=1
# Everything takes some twenty times as long as on the machine itself.
export BALLAST_TEST_SCALE='@SCALE@'
cd /root
/opt/tests @ARGUMENTS@
status=$?
if [ "$status" != 0 ]; then
    printf '\nthe last of the kernel log:\n'
    dmesg | tail -n 60
fi
printf '\n@RESULT@ %s\n' "$status"
stty -F /dev/ttyS1 cooked
sync
poweroff -f
