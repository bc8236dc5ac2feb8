-- Which dead letters are closed. ARGV: id, how, keep ms; or '' and '' to read. Returns their ids
if ARGV[1] == '' then return redis.call('HKEYS', KEYS[1]) end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {}
