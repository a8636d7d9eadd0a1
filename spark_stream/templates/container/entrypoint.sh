#!/bin/bash
# Starts what a container is for: `driver ...` and `executor`, as Spark's scheduler for Kubernetes asks for them, with
# the variables that it sets; anything else is a command, such as `jstream check`.
set -eu
case "${1:-}" in
driver)
    shift
    set -- "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
executor)
    options=()
    number=0
    option=SPARK_JAVA_OPT_0
    while [ -n "${!option+set}" ]; do
        options+=("${!option}")
        number=$((number + 1))
        option=SPARK_JAVA_OPT_$number
    done
    set -- java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*:${SPARK_EXTRA_CLASSPATH:-}" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
esac
exec tini -s -- "$@"
