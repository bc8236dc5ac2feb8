-- What of a shipment is still to be concluded. ARGV: prefix, shipment. Returns {record, tenant, ...}
local found = {}
for _, record in ipairs(redis.call('SMEMBERS', P .. 'records:' .. ARGV[2])) do
  found[#found + 1] = record
  found[#found + 1] = redis.call('HGET', P .. 'tenants', record) or ''
end
return found
