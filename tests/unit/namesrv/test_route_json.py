from __future__ import annotations

from cometmq.model.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from cometmq.namesrv.route_json import cluster_info_json, member_group_json, route_json
from cometmq.protocol.bodies.cluster import BrokerMemberGroup, GetBrokerMemberGroupResponseBody
from cometmq.protocol.fastjson.dialect import decode_body

BROKER = BrokerData('br"oker', "null", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})


def test_broker_ids_are_bare_and_nulls_left_out() -> None:
    route = TopicRouteData([BROKER], [QueueData('br"oker', 4, 4, 6)])
    assert route_json(route) == (
        b'{"brokerDatas":[{"brokerName":"br\\"oker","cluster":"null",'
        b'"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"enableActingMaster":false}],'
        b'"queueDatas":[{"brokerName":"br\\"oker","readQueueNums":4,"writeQueueNums":4,"perm":6,'
        b'"topicSysFlag":0}],"filterServerTable":{}}'
    )
    assert decode_body(route_json(route), TopicRouteData) == route


def test_cluster_info_and_member_group_read_back_equal() -> None:
    info = ClusterInfo({BROKER.broker_name: BROKER}, {"null": [BROKER.broker_name]})
    assert b'{0:"10.0.0.1:10911",' in cluster_info_json(info)
    assert decode_body(cluster_info_json(info), ClusterInfo) == info
    group = BrokerMemberGroup("b", "C", {1: "10.0.0.2:10911"})
    assert b'{1:"10.0.0.2:10911"}' in member_group_json(group)
    decoded = decode_body(member_group_json(group), GetBrokerMemberGroupResponseBody)
    assert decoded.broker_member_group == group
